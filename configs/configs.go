// Package configs holds the configurations that ship inside the binary.
package configs

import _ "embed"

//go:embed cpu-tiny.yaml
var cpuTiny []byte

//go:embed cpu-test.yaml
var cpuTest []byte

// CPUTiny is what `up` runs without -f: a real run on two CPU cores.
func CPUTiny() []byte { return append([]byte(nil), cpuTiny...) }

// CPUTest is a run of a minute, for tests.
func CPUTest() []byte { return append([]byte(nil), cpuTest...) }
