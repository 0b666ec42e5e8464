package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/up"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/contract"
	"github.com/dflash-runner/dflash-runner/plugins/scheduler/host"
	"github.com/dflash-runner/dflash-runner/runner"
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
	err    error  // why it is refused, with its place in the configuration
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
					c.complain(p.err)
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
	for i, p := range loaded.Scheduler.Plugins {
		if len(names) > 0 && names[0] != p.Name {
			continue
		}
		l := listed{Name: p.Name, Path: p.Path, Used: p.Name == loaded.Scheduler.Use, Status: pinned}
		if err := host.Verify(up.Catalog(p)); err != nil {
			l.Status, l.Detail, l.err = refused, err.Error(), up.PluginError(loaded, i, err)
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
			return c.withPlugin(cmd, from, named, extra, func(ctx context.Context, p found, o host.Options) error {
				e := p.entry
				d, err := host.Describe(ctx, e, o)
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
		if err := c.print("  config.%s: %s, %s; %s\n", k.Key, k.Type, strings.Map(printable, value), strings.Map(printable, k.Doc)); err != nil {
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
		Long:    "Starts a program, or a plugin that the configuration names, as a run does, and drives it through every call:\nwhole epochs, bad configurations, deadlines, several questions at a time, what\ngrows with every question, its end. Exit 1 where one fails.",
		Example: "  dflash-runner plugins test ./my-plugin",
		RunE: func(cmd *cobra.Command, named []string) error {
			return c.withPlugin(cmd, from, named, extra, func(ctx context.Context, p found, o host.Options) error {
				all := contract.Check(ctx, p.entry, o)
				if ctx.Err() != nil {
					return ctx.Err() // what failed then says nothing
				}
				if !contract.Passed(all) {
					c.code = runner.ExitFailed
				}
				for _, r := range all {
					if r.Refused != nil && p.at >= 0 {
						c.complain(p.told(r.Refused))
					}
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
