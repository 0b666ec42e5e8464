package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/contract"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/pyenv"
)

func (c *cli) pluginsCommand() *cobra.Command {
	cmd := c.group("plugins", "Show, check and test scheduling plugins",
		"Shows, checks and tests scheduling plugins: programs that decide the order of samples and which target\n"+
			"makes a row. A run starts only what its configuration names in scheduler.plugins.")
	cmd.Example = "  dflash-runner plugins describe ./my-plugin\n  dflash-runner plugins test ./my_plugin.py\n  dflash-runner plugins test ./my-plugin\n  dflash-runner plugins list -f my.yaml"
	cmd.AddCommand(c.pluginsList(), c.pluginsDescribe(), c.pluginsVerify(), c.pluginsTest(), c.pluginsNew(), c.pluginsPin())
	return cmd
}

// listed is a line of `plugins list` and `plugins verify`.
type listed struct {
	Name   string `json:"name"`
	Path   string `json:"path"`
	Used   bool   `json:"used"` // by scheduler.use
	Status string `json:"status"`
	Detail string `json:"detail"`
	hint   string
}

// The statuses of a catalog's entry.
const (
	pinned  = "ok"      // every file is as it was pinned
	refused = "refused" // it would not be started
)

func (c *cli) pluginsList() *cobra.Command {
	var from source
	cmd := c.jsonFlag(&cobra.Command{
		Use: "list", Short: "List a configuration's catalog of plugins", Args: atMost(0), Example: "  dflash-runner plugins list -f my.yaml --json",
		Long: "Lists the plugins that a configuration names, which of them is used, and whether their files are as they were\npinned. It starts nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := c.catalog(cmd, from, nil)
			if err != nil {
				return err
			}
			return c.printCatalog(all)
		},
	})
	from.flags(cmd)
	return cmd
}

func (c *cli) pluginsVerify() *cobra.Command {
	var from source
	cmd := c.jsonFlag(&cobra.Command{
		Use: "verify [NAME]", Short: "Check the files of a configuration's plugins", Args: atMost(1), Example: "  dflash-runner plugins verify -f my.yaml",
		Long: "Checks every file of the plugins that a configuration names: its sha256, its owner, and that nobody else may\nchange it. It starts nothing. Exit 1 where one would be refused.",
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := c.catalog(cmd, from, args)
			if err != nil {
				return err
			}
			for _, p := range all {
				if p.Status == refused {
					c.code = runner.ExitFailed
					c.tell("error", "plugin "+p.Name+": "+p.Detail)
					c.tell("hint", p.hint)
				}
			}
			return c.printCatalog(all)
		},
	})
	from.flags(cmd)
	return cmd
}

// catalog checks the files of every entry, or of the one that is named.
func (c *cli) catalog(cmd *cobra.Command, from source, names []string) ([]listed, error) {
	loaded, err := c.load(cmd, from)
	if err != nil {
		return nil, err
	}
	all := []listed{}
	for _, p := range loaded.Scheduler.Plugins {
		if len(names) > 0 && names[0] != p.Name {
			continue
		}
		l := listed{Name: p.Name, Path: p.Path, Used: p.Name == loaded.Scheduler.Use, Status: pinned}
		if err := host.Verify(up.Catalog(p)); err != nil {
			l.Status, l.Detail, l.hint = refused, err.Error(), runner.HintOf(err)
		}
		all = append(all, l)
	}
	if len(names) > 0 && len(all) == 0 {
		return nil, runner.Errorf(runner.NotFound, "find plugin %s: the configuration does not name it", names[0]).WithHint("`dflash-runner plugins list` shows what it names")
	}
	return all, nil
}

func (c *cli) printCatalog(all []listed) error {
	if c.json {
		return c.printJSON(all)
	}
	for _, p := range all {
		used := ""
		if p.Used {
			used = ", used"
		}
		if err := c.print("%-24s %s%s  %s\n", p.Name, p.Status, used, p.Path); err != nil {
			return err
		}
	}
	return nil
}

// described is `plugins describe --json`.
type described struct {
	host.Description
	Path              string `json:"path"`
	SHA256            string `json:"sha256"`
	Interpreter       string `json:"interpreter,omitempty"` // of a script
	InterpreterSHA256 string `json:"interpreter_sha256,omitempty"`
}

func (c *cli) pluginsDescribe() *cobra.Command {
	var from source
	var extra extras
	cmd := c.jsonFlag(&cobra.Command{
		Use: "describe PATH|NAME", Short: "Start a plugin and show what it says of itself", Args: atMost(1),
		Long:    "Starts a program, or a plugin that the configuration names, asks who it is, what it can do and how it is\nconfigured, and ends it. It prints the sha256 to pin.",
		Example: "  dflash-runner plugins describe ./my-plugin",
		RunE: func(cmd *cobra.Command, named []string) error {
			return c.withPlugin(cmd, from, named, extra, func(e host.Entry, o host.Options) error {
				d, err := host.Describe(cmd.Context(), e, o)
				if err != nil {
					return err
				}
				out := described{Description: d, Path: e.Program.Path, SHA256: e.Program.SHA256, Interpreter: e.Interpreter.Path}
				if e.Borrows() {
					out.Interpreter = o.Python
				}
				if out.Interpreter != "" {
					if out.InterpreterSHA256, err = host.Sum(out.Interpreter); err != nil {
						return err
					}
				}
				return c.printDescription(out)
			})
		},
	})
	from.flags(cmd)
	extra.flags(cmd)
	return cmd
}

func (c *cli) printDescription(d described) error {
	if c.json {
		return c.printJSON(d)
	}
	can := []string{}
	for _, x := range d.Capabilities {
		can = append(can, string(x))
	}
	if err := c.print("%s %s\n  %-8s %s\n  %-8s %s\n  %-8s %v\n  %-8s %s\n  %-8s %s\n", d.Name, d.Version, "path", d.Path, "sha256", d.SHA256, "API", d.APIVersions, "can", strings.Join(can, ", "), "asked", d.Asked); err != nil {
		return err
	}
	if d.Interpreter != "" {
		if err := c.print("  %-8s %s\n  %-8s %s\n", "runs on", d.Interpreter, "", "sha256 "+d.InterpreterSHA256); err != nil {
			return err
		}
	}
	for _, k := range d.Config {
		value := fmt.Sprintf("default %v", k.Default)
		if k.Required {
			value = "required"
		}
		if err := c.print("  config.%s: %s, %s; %s\n", k.Key, k.Type, value, k.Doc); err != nil {
			return err
		}
	}
	return nil
}

func (c *cli) pluginsTest() *cobra.Command {
	var from source
	var extra extras
	cmd := c.jsonFlag(&cobra.Command{
		Use: "test PATH|NAME", Short: "Prove that a plugin keeps the contract", Args: atMost(1),
		Long:    "Starts a program, or a plugin that the configuration names, as a run does, and drives it through every call:\nwhole epochs, bad configurations, deadlines, several questions at a time, its end. Exit 1 where one fails.",
		Example: "  dflash-runner plugins test ./my-plugin",
		RunE: func(cmd *cobra.Command, named []string) error {
			return c.withPlugin(cmd, from, named, extra, func(e host.Entry, o host.Options) error {
				all := contract.Check(cmd.Context(), e, o)
				if !contract.Passed(all) {
					c.code = runner.ExitFailed
				}
				if c.json {
					return c.printJSON(all)
				}
				for _, r := range all {
					if err := c.print("%-8s %-42s %s\n", r.Status, r.Name, r.Detail); err != nil {
						return err
					}
				}
				return nil
			})
		},
	})
	from.flags(cmd)
	extra.flags(cmd)
	return cmd
}

// extras are what a program on the command line is started with.
type extras struct{ args, files []string }

func (x *extras) flags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&x.args, "arg", nil, "argument of the program; may be given again")
	cmd.Flags().StringArrayVar(&x.files, "beside", nil, "file that it reads as code, put beside it; may be given again")
}

// withPlugin finds the plugin that an argument names, by its name in the
// configuration or by its path, and gives it a directory to run in.
func (c *cli) withPlugin(cmd *cobra.Command, from source, named []string, extra extras, f func(host.Entry, host.Options) error) error {
	if len(named) == 0 {
		return lacking(cmd, "%s: want a plugin's path or name, got none", cmd.CommandPath())
	}
	loaded, err := c.load(cmd, from)
	if err != nil {
		return err
	}
	e, err := entryOf(loaded, named[0], extra)
	if err != nil {
		return err
	}
	dir, release, err := admin.OwnedDirectory("")
	if err != nil {
		return err
	}
	o := host.Defaults()
	o.Directory, o.Environ, o.Start, o.Call = dir, os.Environ(), loaded.Scheduler.Start.D(), loaded.Scheduler.Deadline.D()
	giveBack, err := c.borrow(cmd.Context(), loaded, e, &o)
	if err == nil {
		log := filepath.Join(dir, "plugin.log")
		o.LogPath = func(int) string { return log }
		err = errors.Join(f(e, o), giveBack())
		if err != nil || c.code != 0 {
			c.showLog(log)
		}
	}
	if closing := release(); err == nil {
		err = closing
	}
	return err
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

// entryOf is the catalog's entry of a name, or a program as it is now.
func entryOf(c *config.Config, named string, extra extras) (host.Entry, error) {
	for _, p := range c.Scheduler.Plugins {
		if p.Name == named {
			if n := len(extra.args) + len(extra.files); n > 0 {
				return host.Entry{}, usage("plugin %s: want no --arg or --beside for a plugin of the configuration, got %d", named, n)
			}
			return up.Catalog(p), nil
		}
	}
	if !strings.ContainsRune(named, filepath.Separator) {
		return host.Entry{}, runner.Errorf(runner.NotFound, "find plugin %s: the configuration does not name it", named).WithHint("a program is named by its path: ./%s", named)
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
	return e, err
}
