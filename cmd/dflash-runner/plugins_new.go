package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/skeleton"
)

func (c *cli) pluginsNew() *cobra.Command {
	var q skeleton.Request
	cmd := c.jsonFlag(&cobra.Command{
		Use: "new LANGUAGE NAME", Short: "Begin a plugin, in go or python",
		Long: "Makes a directory with a plugin that builds, keeps the contract and runs: its code, a test, a README, and run.yaml,\n" +
			"a run of about a minute that uses it, with its sha256 pinned. A Go plugin is built at once. Inside of a clone of this\n" +
			"project it is a package of it; elsewhere a module whose go.mod names a clone: that of --sdk, or the one that this\n" +
			"program was built from. An existing directory is refused.",
		Example: "  dflash-runner plugins new go short-first\n  dflash-runner plugins new python by-loss --directory plugins/by-loss",
		Args:    atMost(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return lacking(cmd, "plugins new: want a language, %s, and a name, got %d arguments", strings.Join(skeleton.Languages, " or "), len(args))
			}
			q.Language, q.Name = args[0], args[1]
			m, err := skeleton.Make(cmd.Context(), q)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(m)
			}
			if m.SDK != "" {
				c.tell("sdk", m.SDK)
			}
			return c.printMade(m)
		},
	})
	cmd.Flags().StringVar(&q.Directory, "directory", "", "to make (default: the name, here)")
	cmd.Flags().StringVar(&q.SDK, "sdk", "", "clone of this project that a Go plugin is built against")
	return cmd
}

// printMade says what was written, and what a newcomer does next.
func (c *cli) printMade(m skeleton.Made) error {
	source, method, build := m.Program, "arrange", ""
	if m.Language == "go" {
		source, method, build = "plugin.go", "Arrange", "  go build -o "+m.Program+" .\n"
	}
	return c.print("%s\n  %s\n  %-8s %s\n\n  cd %s\n  dflash-runner up -f %s             # about a minute, on the CPU, with the plugin as it is\n\n"+
		"Then edit %s in %s, and:\n\n%s  dflash-runner plugins test ./%s\n  dflash-runner plugins pin -f %s    # a run starts only what is pinned: after every edit\n"+
		"  dflash-runner up -f %s\n  dflash-runner events | grep arranged     # how its orders differ from the built-in's\n",
		m.Directory, strings.Join(m.Files, "  "), "sha256", m.SHA256, m.Directory, m.Config, method, source, build, m.Program, m.Config, m.Config)
}
