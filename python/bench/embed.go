// Package bench carries the Python side of `dflash-runner bench` inside the
// binary.
package bench

import "embed"

// Scripts are the programs: each one file, run by the workers' interpreter.
//
//go:embed *.py
var Scripts embed.FS
