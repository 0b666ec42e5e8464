package up

import (
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// RowsConfig gives what a run's rows and steps are planned with: what its
// journal is verified against.
func RowsConfig(c *config.Config, ix *rows.Index) (rows.Config, error) {
	p, err := (&up{config: c}).planning(ix)
	return p.config, err
}

// JobEnvironment is what a job outside of a run is given besides what it
// inherits, on a CPU or on the GPU with that UUID.
func JobEnvironment(tree string, threads int, device string) []string {
	return append(python{tree: tree}.environment(threads), seeing(device)...)
}

// Told is a device, cpu or a GPU's UUID, as a job is told it.
func Told(device string) string { return told(device) }
