package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
)

// source is the flags that name a configuration.
type source struct {
	file string
	set  []string
}

// flags adds -f and --set.
func (s *source) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&s.file, "file", "f", "", "configuration file (default: the embedded one)")
	cmd.Flags().StringArrayVar(&s.set, "set", nil, "override path=value; may be given again")
}

// load reads the configuration that the flags name. The global --runs, where it
// was given, is the directory of runs as it is for `up`.
func (c *cli) load(cmd *cobra.Command, s source) (*config.Config, error) {
	return config.Load(s.file, c.overrides(cmd, s))
}

// overrides is what --set says, and the global --runs where it was given.
func (c *cli) overrides(cmd *cobra.Command, s source) []string {
	if !cmd.Flags().Changed("runs") {
		return s.set
	}
	return append(slices.Clone(s.set), "run.directory="+quoted(c.runs))
}

func (c *cli) configCommand() *cobra.Command {
	cmd := c.group("config", "Show and check configurations", "Shows and checks configurations.")
	cmd.Example = "  dflash-runner config show > my.yaml\n  dflash-runner config validate -f my.yaml"
	cmd.AddCommand(c.configShow(), c.configValidate(), &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the file",
		Example: "  dflash-runner config schema > dflash-runner.schema.json",
		Args:    atMost(0),
		RunE:    func(*cobra.Command, []string) error { return c.print("%s", config.Schema()) },
	})
	return cmd
}

func (c *cli) configShow() *cobra.Command {
	var from source
	cmd := c.jsonFlag(&cobra.Command{
		Use:     "show",
		Short:   "Print the resolved configuration, every key of it",
		Example: "  dflash-runner config show --set training.steps=100",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := c.load(cmd, from)
			if err != nil {
				return err
			}
			text, err := loaded.YAML()
			if err == nil && c.json {
				if text, err = yaml.YAMLToJSON(text); err != nil {
					err = runner.Errorf(runner.Internal, "show configuration: %w", err)
				}
			}
			if err != nil {
				return err
			}
			return c.print("%s", text)
		},
	})
	from.flags(cmd)
	return cmd
}

// validated is `config validate --json`.
type validated struct {
	Valid    bool      `json:"valid"`
	File     string    `json:"file"`
	Run      string    `json:"run"` // empty where it is not valid
	Problems []problem `json:"problems"`
	// Warnings are what a run would begin with all the same, degraded.
	Warnings []problem `json:"warnings"`
	// Unchecked are paths whose check takes a plugin's process; none is started.
	Unchecked []string `json:"unchecked"`
}

// problem is one mistake; line and column are 0 where no place in a file is meant.
type problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

// judged is what a configuration's loading came to.
func judged(name string, loaded *config.Config, err error) validated {
	v := validated{Valid: err == nil, File: name, Problems: []problem{}, Warnings: []problem{}, Unchecked: []string{}}
	var problems config.Problems
	switch {
	case err == nil:
		v.Run = loaded.Run.Name
	case errors.As(err, &problems):
		v.Problems = placed(problems)
	default: // the file could not be read
		v.Problems = append(v.Problems, problem{File: name, Message: err.Error(), Hint: runner.HintOf(err)})
	}
	return v
}

// placed gives problems as they are printed, each with its place.
func placed(problems config.Problems) []problem {
	out := []problem{}
	for _, p := range problems {
		out = append(out, problem{p.File, p.Line, p.Column, p.Path, p.Message, p.Hint})
	}
	return out
}

func (c *cli) configValidate() *cobra.Command {
	var from source
	cmd := c.jsonFlag(&cobra.Command{
		Use:   "validate",
		Short: "Check a configuration, and the target and plugin that it names",
		Long: "Checks a configuration, the target that it names, and the files of the plugin that it uses. Every problem is\n" +
			"printed on stderr; exit 2. A plugin that would be refused is one only where scheduler.required is true: else a run\n" +
			"begins without it, degraded, and a warning says so. A plugin's own configuration takes its process, which is not\n" +
			"started: a note says so. With --json valid, file, run, the problems, the warnings and what was not checked are\n" +
			"printed on stdout besides.",
		Example: "  dflash-runner config validate -f my.yaml\n  dflash-runner config validate -f my.yaml --json",
		Args:    atMost(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := c.load(cmd, from)
			name := from.file
			if name == "" {
				name = config.DefaultName
			}
			of := catalogued{unchecked: []string{}}
			if err == nil {
				of = c.catalogued(loaded, name)
				err = of.problems.Err()
			}
			switch {
			case c.json:
				v := judged(name, loaded, err)
				v.Warnings, v.Unchecked = placed(of.warnings), of.unchecked
				return errors.Join(err, c.printJSON(v))
			case err != nil:
				return err
			}
			return c.print("%s: valid, run %s\n", name, loaded.Run.Name)
		},
	})
	from.flags(cmd)
	return cmd
}

// pluginProblem checks the files of the plugin that is used, and starts nothing;
// nil where all is well, or none is used.
func pluginProblem(loaded *config.Config) *config.Problem {
	p, at := loaded.Scheduler.Plugin()
	if p == nil {
		return nil
	}
	if err := host.Verify(up.Catalog(*p)); err != nil {
		problem := loaded.Problem(fmt.Sprintf("scheduler.plugins[%d]", at), err)
		return &problem
	}
	return nil
}

// catalogued is what a look at the catalog's files came to.
type catalogued struct {
	problems, warnings config.Problems
	unchecked          []string
}

// catalogued checks the files of the plugin that is used, and tells what of the
// catalog was not checked, and which entries would be refused if they were used.
// The one that is used is a problem only to a run that requires it.
func (c *cli) catalogued(loaded *config.Config, name string) catalogued {
	of := catalogued{unchecked: []string{}}
	for i, p := range loaded.Scheduler.Plugins {
		at := fmt.Sprintf("scheduler.plugins[%d]", i)
		err := host.Verify(up.Catalog(p))
		switch used := p.Name == loaded.Scheduler.Use; {
		case err != nil && used && loaded.Scheduler.Required == "true":
			of.problems = append(of.problems, loaded.Problem(at, err))
			continue
		case err != nil && used:
			wrong := loaded.Problem(at, err)
			wrong.Message += "; the built-in would decide alone"
			of.warnings = append(of.warnings, wrong)
			c.tell("warning", wrong.String())
			c.tell("hint", wrong.Hint)
		case err != nil:
			c.tell("note", fmt.Sprintf("%s: plugin %s is not used, and would be refused: %s", loaded.Place(at), p.Name, err))
			continue
		case used:
			c.tell("note", fmt.Sprintf("plugin %s: its files were checked; its own configuration was not, as that takes its process: `dflash-runner plugins test %s -f %s`", p.Name, p.Name, name))
		}
		of.unchecked = append(of.unchecked, at+".config")
	}
	return of
}
