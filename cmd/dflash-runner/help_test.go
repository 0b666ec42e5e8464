package main

import "github.com/spf13/cobra"

// testCommand is what help shows of a command.
type testCommand struct {
	Name, Short, Example string
	Children             []*testCommand
}

func describeCommands(c *cobra.Command) *testCommand {
	d := &testCommand{Name: c.Name(), Short: c.Short, Example: c.Example}
	for _, child := range c.Commands() {
		if child.Name() != "help" {
			d.Children = append(d.Children, describeCommands(child))
		}
	}
	return d
}
