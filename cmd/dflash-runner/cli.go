package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// cli is what the commands share: the streams, the global flags, the exit code.
type cli struct {
	in, out, err *os.File
	runs         string // directory of runs
	json         bool
	code         int // of a command that ends without an error
}

func newCLI(in, out, err *os.File) *cli { return &cli{in: in, out: out, err: err} }

// root makes the tree of commands.
func (c *cli) root() *cobra.Command {
	root := c.group("dflash-runner", "Train a DFlash drafter for a frozen language model",
		"Trains a DFlash drafter for a frozen language model, on one machine, with one command.\n\n"+
			"Exit codes: 0 done, 1 failed and may be retried, 2 usage or configuration, 3 preflight refused,\n"+
			"75 stopped by a signal, after a checkpoint where a step was trained, 93 must not be retried.")
	root.Example = "  dflash-runner up                     # the embedded default: a real run on two CPU cores\n" +
		"  dflash-runner up -f my.yaml --detach\n  dflash-runner status"
	root.PersistentFlags().StringVar(&c.runs, "runs", "runs", "directory that holds the runs")
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage("%s: %s", cmd.CommandPath(), err).WithHint("`%s --help` shows its flags", cmd.CommandPath())
	})
	root.AddCommand(c.upCommand(), c.downCommand(), c.statusCommand(), c.healthCommand(), c.logsCommand(), c.eventsCommand(),
		c.configCommand(), c.checkpointsCommand(), c.journalCommand(), c.planCommand(), c.doctorCommand(), c.exportCommand(), c.evalCommand(), c.prepareCommand(),
		c.pluginsCommand(), c.cacheCommand(), c.gcCommand(), c.benchCommand(), c.versionCommand())
	root.PersistentPreRunE = refuseEmpty
	return c.strict(root)
}

// strict makes the library's own commands, help and completion, refuse what
// they do not know as ours do.
func (c *cli) strict(root *cobra.Command) *cobra.Command {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.SuggestionsMinimumDistance = 2
			cmd.Args, cmd.RunE = knownCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			cmd.Example = "  source <(dflash-runner completion bash)\n  dflash-runner completion zsh > \"${fpath[1]}/_dflash-runner\""
			for _, shell := range cmd.Commands() {
				shell.Args = atMost(0)
				shell.Example = "  dflash-runner completion " + shell.Name()
			}
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				found, left, err := root.Find(args)
				if err == nil && len(left) == 0 {
					return nil
				}
				if found == nil {
					found = root
				}
				return knownCommand(found, append(left, args...))
			}
		}
	}
	return root
}

// refuseEmpty refuses a text flag that was given without a text: a variable of
// the shell that was not set must not look like the flag left out.
func refuseEmpty(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err == nil && f.Value.Type() == "string" && f.Value.String() == "" {
			hint := fmt.Sprintf("leave --%s out for its default", f.Name)
			if f.DefValue == "" && !strings.Contains(f.Usage, "(default") { // it has none
				hint = fmt.Sprintf("--%s: %s", f.Name, f.Usage)
			}
			err = usage("%s: want a text for --%s, got an empty one", cmd.CommandPath(), f.Name).WithHint("%s", hint)
		}
	})
	return err
}

// group makes a command that only holds others.
func (c *cli) group(use, short, long string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Long: long, SuggestionsMinimumDistance: 2,
		Args: knownCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}

// knownCommand refuses what is no command of a group.
func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	e := usage("%s: unknown command %q", cmd.CommandPath(), args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return e.WithHint("did you mean %q?", near[0])
	}
	return e.WithHint("`%s --help` lists the commands", cmd.CommandPath())
}

// usage is an error about the command line.
func usage(format string, a ...any) *runner.Error { return runner.Errorf(runner.Invalid, format, a...) }

// atMost refuses more arguments than that.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= n {
			return nil
		}
		want := map[int]string{0: "no argument", 1: "at most 1 argument"}[n]
		if want == "" {
			want = fmt.Sprintf("at most %d arguments", n)
		}
		e := usage("%s: want %s, got %d: %s", cmd.CommandPath(), want, len(args), strings.Join(args, " "))
		if n == 0 && cmd.Flags().Lookup("file") != nil {
			return e.WithHint("a configuration is named by -f FILE; `%s --help` shows the flags", cmd.CommandPath())
		}
		return e.WithHint("`%s --help` shows what it takes", cmd.CommandPath())
	}
}

// lacking is a usage error with the command's own example for a hint.
func lacking(cmd *cobra.Command, format string, a ...any) error {
	example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n")
	return usage(format, a...).WithHint("for example `%s`", example)
}

// jsonFlag adds --json.
func (c *cli) jsonFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&c.json, "json", false, "print JSON")
	return cmd
}

// codeOf gives the exit code of an error.
func codeOf(err error) int {
	switch runner.KindOf(err) {
	case runner.Invalid, runner.NotFound:
		return runner.ExitUsage
	case runner.Exhausted:
		return runner.ExitPreflight
	}
	return runner.ExitFailed
}

// complain prints an error and its hint on stderr; each problem of a
// configuration is an error of its own.
func (c *cli) complain(err error) {
	var problems config.Problems
	if errors.As(err, &problems) {
		for _, p := range problems {
			c.tell("error", p.String())
			c.tell("hint", p.Hint)
		}
		return
	}
	c.tell("error", err.Error())
	c.tell("hint", runner.HintOf(err))
}

// tell prints a line of a kind on stderr, nothing for an empty text.
func (c *cli) tell(kind, text string) {
	if text != "" {
		fmt.Fprintf(c.err, "%s: %s\n", kind, text)
	}
}

// print writes a result.
func (c *cli) print(format string, a ...any) error {
	if _, err := fmt.Fprintf(c.out, format, a...); err != nil {
		return runner.Errorf(runner.Unavailable, "print result: %w", err)
	}
	return nil
}

// printJSON writes a result as JSON.
func (c *cli) printJSON(v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return runner.Errorf(runner.Internal, "print result: %w", err)
	}
	return c.print("%s\n", text)
}

// runsFlag is what a command in a hint needs to find the same runs: nothing,
// where they are in the default directory.
func (c *cli) runsFlag() string {
	switch {
	case c.runs == "runs":
		return ""
	case strings.ContainsAny(c.runs, " \t'\"$`\\*?&|;<>()[]{}!#~"):
		return " --runs '" + strings.ReplaceAll(c.runs, "'", `'\''`) + "'"
	}
	return " --runs " + c.runs
}

// find gives the directory of the run named by the argument at that place, or of
// the newest.
func (c *cli) find(args []string, at int) (string, error) {
	name := ""
	if len(args) > at {
		name = args[at]
	}
	return admin.Find(c.runs, name)
}
