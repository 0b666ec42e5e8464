// Command dflash-runner trains a DFlash drafter for a frozen language model:
// `dflash-runner up` does all of it on one machine. Each command is one file
// here: flags, printing and the exit code, nothing else.
package main

import (
	"os"

	"github.com/dflash-runner/dflash-runner/runner"
)

func main() { os.Exit(Main(os.Args[1:])) }

// Main runs one command line and gives the exit code.
func Main(args []string) int {
	c := newCLI(os.Stdin, os.Stdout, os.Stderr)
	root := c.root()
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return c.code
	}
	if c.code == runner.ExitDone {
		c.code = codeOf(err)
	}
	c.complain(err)
	return c.code
}
