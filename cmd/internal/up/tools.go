package up

import (
	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
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

// Tell tells a job its device, cpu or a GPU's UUID, where the job computes.
func Tell(j *jobv1.Job, device string) {
	switch job := j.Job.(type) {
	case *jobv1.Job_BuildTarget:
		job.BuildTarget.Device = told(device)
	case *jobv1.Job_Regenerate:
		job.Regenerate.Device = told(device)
	case *jobv1.Job_Evaluate:
		job.Evaluate.Device = told(device)
	}
}
