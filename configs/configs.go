// Package configs holds the configurations that ship inside the binary.
package configs

import "embed"

// Files are all of them.
//
//go:embed *.yaml
var Files embed.FS

// CPUTiny is what `up` runs without -f: a real run on two CPU cores.
func CPUTiny() []byte { return read("cpu-tiny.yaml") }

// CPUTest is a run of a minute, for tests.
func CPUTest() []byte { return read("cpu-test.yaml") }

func read(name string) []byte {
	text, err := Files.ReadFile(name)
	if err != nil {
		panic("configs: " + err.Error()) // it is embedded
	}
	return text
}
