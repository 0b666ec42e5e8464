package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

// extras are what a program on the command line is started with.
type extras struct{ args, files []string }

func (x *extras) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&x.args, "arg", nil, "argument of the program; may be given again")
	cmd.Flags().StringArrayVar(&x.files, "beside", nil, "file that it reads as code, put beside it; may be given again")
}

// found is a plugin that an argument names.
type found struct {
	entry  host.Entry
	config *config.Config
	at     int // in the configuration's catalog; -1: by its path
}

// told puts the place in the configuration before an error of a plugin that it
// names.
func (f found) told(err error) error {
	if err == nil || f.at < 0 || runner.KindOf(err) == runner.Canceled {
		return err
	}
	return up.PluginError(f.config, f.at, err)
}

// withPlugin finds the plugin that an argument names, by its name in the
// configuration or by its path, and gives it a directory to run in.
func (c *cli) withPlugin(cmd *cobra.Command, from source, named []string, extra extras, f func(context.Context, found, host.Options) error) error {
	if len(named) == 0 {
		return lacking(cmd, "%s: want a plugin's path or name, got none", cmd.CommandPath())
	}
	loaded, err := c.load(cmd, from)
	if err != nil {
		return err
	}
	p, err := find(loaded, named[0], extra)
	if err != nil {
		return err
	}
	return c.hosted(cmd.Context(), loaded, p.entry, func(ctx context.Context, o host.Options) error {
		log := filepath.Join(o.Directory, "plugin.log")
		o.LogPath = func(int) string { return log }
		err := p.told(f(ctx, p, o))
		if ctx.Err() == nil && (err != nil || c.code != 0) {
			c.showLog(log)
		}
		return err
	})
}

// hosted gives f what a plugin is started with: a directory of its own, and for
// a script that borrows one an interpreter. Both are given back when it returns,
// also after Ctrl-C, which ends f's context.
func (c *cli) hosted(ctx context.Context, loaded *config.Config, e host.Entry, f func(context.Context, host.Options) error) error {
	live, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, release, err := admin.OwnedDirectory("")
	if err != nil {
		return err
	}
	o := up.Hosting(loaded)
	o.Directory = dir
	giveBack, err := c.borrow(live, loaded, e, &o)
	ending := func() error { return nil }
	if err == nil {
		err, ending = f(live, o), giveBack
	}
	if live.Err() != nil {
		err = runner.Errorf(runner.Canceled, "ask plugin %s: interrupted", cmp.Or(e.Name, e.Program.Path))
	}
	return errors.Join(err, ending(), release())
}

// shownLines is how much of what a plugin printed is shown where it failed.
const shownLines = 24

// showLog shows the end of what a plugin printed: a traceback names the line.
func (c *cli) showLog(path string) {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return // it never started, or printed nothing
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	for _, line := range lines[max(0, len(lines)-shownLines):] {
		c.tell("plugin", fmt.Sprintf("%.200s", strings.Map(printable, line)))
	}
}

// printable keeps a stranger's line from steering a terminal.
func printable(r rune) rune {
	if unicode.IsPrint(r) || r == '\t' {
		return r
	}
	return '?'
}

// borrow gives a Python script that names no interpreter the workers' Python,
// and makes its environment where there is none. It is used until giveBack.
func (c *cli) borrow(ctx context.Context, loaded *config.Config, e host.Entry, o *host.Options) (giveBack func() error, err error) {
	if !e.Borrows() {
		return func() error { return nil }, nil
	}
	env, err := pyenv.Ensure(ctx, pyenv.Worker("", loaded.Python.Interpreter), func(p pyenv.Progress) {
		if p.Stage != "check" && p.Message != "" {
			c.tell("environment", p.Message)
		}
	})
	if err != nil {
		return nil, err
	}
	o.Python = env.Python
	return env.Close, nil
}

// find gives the catalog's entry of a name, or a program as it is now.
func find(c *config.Config, named string, extra extras) (found, error) {
	for i, p := range c.Scheduler.Plugins {
		if p.Name == named {
			if n := len(extra.args) + len(extra.files); n > 0 {
				return found{}, usage("plugin %s: want no --arg or --beside for a plugin of the configuration, got %d", named, n)
			}
			return found{up.Catalog(p), c, i}, nil
		}
	}
	if !strings.ContainsRune(named, filepath.Separator) {
		return found{}, runner.Errorf(runner.NotFound, "find plugin %s: the configuration does not name it", named).WithHint("a program is named by its path: ./%s", named)
	}
	e, err := host.Pin(named, extra.args...)
	for _, path := range extra.files {
		if err != nil {
			break
		}
		var beside host.Entry
		beside, err = host.Pin(path)
		e.Files = append(e.Files, beside.Program)
	}
	return found{e, c, -1}, err
}
