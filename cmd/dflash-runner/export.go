package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/jobs"
	jobv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/job/v1"
	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/config"
	"github.com/dflash-runner/dflash-runner/runner/image"
	"github.com/dflash-runner/dflash-runner/runner/placement"
)

// exported is `export --json`.
type exported struct {
	Directory  string      `json:"directory"`
	Run        string      `json:"run"`
	Checkpoint string      `json:"checkpoint"`
	Step       runner.Step `json:"step"`
	Tensors    int         `json:"tensors"`
	Parameters uint64      `json:"parameters"`
}

func (c *cli) exportCommand() *cobra.Command {
	var checkpoint, directory, dtype string
	cmd := c.jsonFlag(&cobra.Command{
		Use:     "export [RUN]",
		Short:   "Write a checkpoint as a drafter directory that serving engines load",
		Long:    "Writes a checkpoint of a run as a drafter directory in the format that serving engines load.\nThe newest checkpoint is taken where none is named; `best` names the best by held-out loss.",
		Example: "  dflash-runner export --to drafter\n  dflash-runner export cpu-tiny --checkpoint best --to drafter --dtype float32",
		Args:    atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if directory == "" {
				return lacking(cmd, "export: want --to DIRECTORY, got none")
			}
			if err := checkFree(directory); err != nil {
				return err
			}
			dir, err := c.find(args, 0)
			if err != nil {
				return err
			}
			e, err := c.export(cmd.Context(), dir, checkpoint, directory, dtype)
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(e)
			}
			return c.print("%s\n", e.Directory)
		},
	})
	cmd.Flags().StringVar(&checkpoint, "checkpoint", "", "a checkpoint's name, or best (default: the newest)")
	cmd.Flags().StringVar(&directory, "to", "", "the directory to write; it must not exist")
	cmd.Flags().StringVar(&dtype, "dtype", "bfloat16", "of the weights: bfloat16 or float32")
	return cmd
}

// checkFree refuses a directory that holds something, before anything is started.
func checkFree(directory string) error {
	left, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(left) == 0 {
		return nil
	}
	if err != nil {
		return runner.Errorf(runner.Invalid, "make %s: %w", directory, err).WithHint("choose another directory")
	}
	return runner.Errorf(runner.Invalid, "make %s: there already", directory).WithHint("remove it, or choose another directory")
}

// interrupted says what a job that was interrupted left in the directory that it
// was to write; empty: it writes none. Such a job has nothing to resume.
func interrupted(err error, directory string) error {
	var e *runner.Error
	if !errors.As(err, &e) || e.Kind != runner.Canceled {
		return err
	}
	if directory == "" {
		return e.WithHint("nothing was written and there is nothing to resume: run it again")
	}
	partial := filepath.Join(filepath.Dir(directory), "."+filepath.Base(directory)+".partial-")
	if left, _ := filepath.Glob(partial + "*"); len(left) > 0 {
		return e.WithHint("%s is as it was; half-made and left: %s, which the next try removes; there is nothing to resume", directory, strings.Join(left, ", "))
	}
	return e.WithHint("%s is as it was, nothing half-made is left and there is nothing to resume: run it again", directory)
}

// madeOf is the part of a run's manifest that says what its drafter is.
type madeOf struct {
	Drafter *workerv1.Drafter `json:"drafter"`
	Target  *workerv1.Target  `json:"target"`
	Index   string            `json:"index"`
	Bits    bool              `json:"bit_identical"`
}

// manifest reads a run's manifest.json.
func manifest(dir string) (m madeOf, text []byte, err error) {
	path := filepath.Join(dir, "manifest.json")
	if text, err = os.ReadFile(path); err != nil {
		return m, nil, runner.Errorf(runner.NotFound, "read manifest: %w", err).WithHint("the run has not come as far as training")
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Drafter == nil || m.Target == nil {
		return m, nil, runner.Errorf(runner.Invalid, "read manifest %s: want drafter and target: %w", path, err)
	}
	return m, text, nil
}

func (c *cli) export(ctx context.Context, dir, checkpoint, directory, dtype string) (e exported, err error) {
	m, _, err := manifest(dir)
	if err != nil {
		return e, err
	}
	chosen, err := chooseCheckpoint(dir, checkpoint)
	if err != nil {
		return e, err
	}
	if directory, err = filepath.Abs(directory); err != nil {
		return e, runner.Errorf(runner.Internal, "export: %w", err)
	}
	if _, err := image.Verify(chosen.Path); err != nil {
		return e, err
	}
	job := &jobv1.Export{Directory: directory, Drafter: m.Drafter, Target: m.Target, Dtype: dtype}
	if job.Image, err = filepath.Abs(filepath.Join(chosen.Path, image.ImageFile)); err != nil {
		return e, runner.Errorf(runner.Internal, "export: %w", err)
	}
	interpreter, err := interpreterOf(dir)
	if err != nil {
		return e, err
	}
	r, err := c.job(ctx, interpreter, placement.CPU, &jobv1.Job{Job: &jobv1.Job_Export{Export: job}})
	if err != nil {
		return e, interrupted(err, directory)
	}
	return exported{directory, filepath.Base(dir), chosen.Name, chosen.Facts.Step, int(r.Figures["tensors"]), uint64(r.Figures["parameters"])}, nil
}

// interpreterOf gives the Python that a run's configuration names, empty for
// our own.
func interpreterOf(dir string) (string, error) {
	loaded, err := config.Load(filepath.Join(dir, "config.yaml"), nil)
	if err != nil {
		return "", err
	}
	return loaded.Python.Interpreter, nil
}

// job runs one job in the environment, until its end or Ctrl-C; its warnings go
// to stderr.
func (c *cli) job(ctx context.Context, interpreter, device string, j *jobv1.Job) (*jobv1.Result, error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	r, release, err := jobs.New(ctx, interpreter, device, c.err, c.tell)
	if err != nil && ctx.Err() != nil {
		return nil, runner.Errorf(runner.Canceled, "run job: interrupted")
	}
	if err != nil {
		return nil, err
	}
	defer release()
	result, err := r.Run(ctx, j, c.progress())
	if err != nil {
		return nil, err
	}
	for _, w := range result.Warnings {
		c.tell("warning", w)
	}
	return result, nil
}
