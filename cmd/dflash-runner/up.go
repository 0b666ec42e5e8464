package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/cmd/internal/view"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// upFlags is what `up` was told.
type upFlags struct {
	source
	name          string
	resume        bool
	detach, plain bool
	readyFD       int // where a detached run tells its directory; 0: not detached
}

func (c *cli) upCommand() *cobra.Command {
	var f upFlags
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "up",
		Short: "Train a drafter: environment, target, data, training, evaluation, export",
		Long: "Trains a drafter, from a configuration to an exported directory. Without -f it runs the embedded\n" +
			"default: a real run on two CPU cores. With --resume and without -f it goes on with the run's own\n" +
			"configuration; without --name with the newest run. Progress goes to stderr, the summary at the end to stdout.\n\n" +
			"Ctrl-C once: checkpoint, if a step was trained, and a clean end (exit 75). Twice: end at once (exit 75 where\n" +
			"there is a checkpoint to go on from, else 1).",
		Example: "  dflash-runner up\n  dflash-runner up -f my.yaml --name first --detach\n" +
			"  dflash-runner up --resume --name first\n  dflash-runner up --set training.steps=100 --plain",
		Args: atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.set = c.overrides(cmd, f.source)
			if f.resume && f.file == "" {
				if err := c.own(&f); err != nil {
					return err
				}
			}
			if f.detach {
				return c.detach(cmd.Context(), f)
			}
			return c.up(cmd.Context(), f)
		},
	})
	f.flags(cmd)
	cmd.Flags().StringVar(&f.name, "name", "", "the run's name (default: the configuration's)")
	cmd.Flags().BoolVar(&f.resume, "resume", false, "go on with an unfinished run")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "return once the run answers; it goes on in the background")
	cmd.Flags().BoolVar(&f.plain, "plain", false, "print lines instead of the live view")
	cmd.Flags().IntVar(&f.readyFD, "ready-fd", 0, "")
	_ = cmd.Flags().MarkHidden("ready-fd") // it exists
	return cmd
}

// own makes a resumed run's own configuration the one that --set changes, and
// finds the newest run where none is named. A run that is not there, or that
// has no configuration, is left for the start to refuse.
func (c *cli) own(f *upFlags) error {
	given, err := config.Load("", f.set)
	if err != nil {
		return err
	}
	root := given.Run.Directory
	if f.name == "" {
		newest, err := admin.Find(root, "")
		if err != nil {
			return err
		}
		f.name = filepath.Base(newest)
	}
	file := filepath.Join(root, f.name, "config.yaml")
	if _, err := os.Stat(file); err != nil {
		return nil // openRun says what is there instead
	}
	f.file, f.set = file, append(f.set, "run.directory="+quoted(root))
	return nil
}

// up runs in this process and prints the summary.
func (c *cli) up(ctx context.Context, f upFlags) error {
	// A reader of our output that goes away must not end the run: writes fail instead.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	directory, began := "", time.Now()
	o := up.Options{ConfigPath: f.file, Name: f.name, Set: f.set, Resume: f.resume, Detached: f.readyFD > 0, Alone: true, Stderr: c.err,
		Ready: func(dir string) {
			directory = dir
			if f.readyFD > 0 {
				announce(f.readyFD, dir)
			}
		}}
	if f.readyFD == 0 {
		o.Show = c.show(f.plain)
	}
	c.code = up.Run(ctx, o)
	if directory == "" {
		return nil
	}
	s, err := admin.ReadSummary(directory)
	if err != nil || s.EndedAt.Before(began) {
		return nil // it ended before there was anything to sum up, and said why
	}
	if c.json {
		err = c.printJSON(s)
	} else {
		err = c.print("%s", view.Summary(s))
	}
	if errors.Is(err, syscall.EPIPE) {
		return nil // nobody reads it; the run's end and its exit code are what they are
	}
	return err
}

// show chooses the live view, or lines where stderr or stdin is no terminal.
func (c *cli) show(plain bool) func(context.Context, func() admin.Status, func(bool)) error {
	if !plain && os.Getenv("CI") == "" && term.IsTerminal(int(c.err.Fd())) && term.IsTerminal(int(c.in.Fd())) {
		return func(ctx context.Context, status func() admin.Status, stop func(quick bool)) error {
			err := view.Live(ctx, c.in, c.err, status, func(m admin.Mode) { stop(m == admin.Quick) })
			if err != nil {
				c.complain(err)
				return c.lines(ctx, status)
			}
			return nil
		}
	}
	return func(ctx context.Context, status func() admin.Status, _ func(bool)) error { return c.lines(ctx, status) }
}

// lines prints what changes until ctx is done, or until it cannot be printed.
func (c *cli) lines(ctx context.Context, status func() admin.Status) error {
	p := view.NewPlain(c.err)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		done := ctx.Err() != nil
		if err := p.Print(status()); err != nil || done {
			return err
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}
