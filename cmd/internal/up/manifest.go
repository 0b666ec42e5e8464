package up

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/rows"
)

// manifestFormat is the version of manifest.json.
const manifestFormat = "dflash-runner-manifest/1"

// manifest is manifest.json: what a run's bits depend on.
type manifest struct {
	Format       string             `json:"format"`
	Name         string             `json:"name"`
	Index        string             `json:"index"` // SHA-256 of the data index, hex
	Data         string             `json:"data"`  // of the data
	WorldSize    int                `json:"world_size"`
	RowsPerStep  int                `json:"rows_per_step"`
	Steps        uint64             `json:"steps"`
	Buckets      []uint32           `json:"buckets"`
	Horizon      int                `json:"horizon_steps"` // of the order of samples
	Schedule     schedule           `json:"learning_rate"`
	Threads      int                `json:"threads"` // of each worker
	Attention    string             `json:"attention"`
	Rows         string             `json:"target_attention"` // that rows are made by; a manifest of an earlier version has none, and means sdpa
	Environment  string             `json:"environment"`      // fingerprint of the Python environment
	Machine      string             `json:"machine"`          // processor, and GPUs where they compute: other ones round otherwise
	Drafter      *workerv1.Drafter  `json:"drafter"`
	Training     *workerv1.Training `json:"training"`
	Target       *workerv1.Target   `json:"target"`
	Seed         uint64             `json:"seed"`
	BitIdentical bool               `json:"bit_identical"` // every life of the run so far gives the same bits
	Placement    map[string]string  `json:"placement"`     // each worker's device at the start: "cpu" or a GPU's UUID; by itself it changes no bits
}

// schedule is what the learning rate of every step follows from.
type schedule struct {
	Peak   float64 `json:"peak"`
	Floor  float64 `json:"floor_fraction"`
	WarmUp float64 `json:"warmup_fraction"`
}

// against compares the manifest of a resumed run with the one before. What
// makes another run of it is an error; what only changes bits is named.
func (m manifest) against(old manifest) (differs []string, err error) {
	if old.Format != m.Format {
		return nil, runner.Errorf(runner.Invalid, "resume run %q: manifest.json: %w", m.Name, runner.WrongFormat(m.Format, old.Format))
	}
	for _, c := range []struct{ what, was, is string }{
		{"data index", old.Index, m.Index},
		{"data", old.Data, m.Data},
		{"workers.drafters", fmt.Sprint(old.WorldSize), fmt.Sprint(m.WorldSize)},
		{"training.rows_per_step", fmt.Sprint(old.RowsPerStep), fmt.Sprint(m.RowsPerStep)},
		{"steps", fmt.Sprint(old.Steps), fmt.Sprint(m.Steps)},
		{"training.buckets", fmt.Sprint(old.Buckets), fmt.Sprint(m.Buckets)},
		{"training.horizon_steps", fmt.Sprint(old.Horizon), fmt.Sprint(m.Horizon)},
		{"learning rate", text(old.Schedule), text(m.Schedule)},
		{"run.seed", fmt.Sprint(old.Seed), fmt.Sprint(m.Seed)},
		{"drafter", text(old.Drafter), text(m.Drafter)},
		{"training", text(old.Training), text(m.Training)},
		{"target", text(old.Target), text(m.Target)},
	} {
		if c.was != c.is {
			return nil, runner.Errorf(runner.Invalid, "resume run %q: %s: want what the run began with, %s, got %s", m.Name, c.what, c.was, c.is).
				WithHint("`dflash-runner up --resume --name %s` without -f takes the run's own configuration; to train on with another one, start a new run with drafter.init_from", m.Name)
		}
	}
	for _, c := range []struct{ what, was, is string }{
		{"workers.threads", fmt.Sprint(old.Threads), fmt.Sprint(m.Threads)},
		{"drafter.attention", old.Attention, m.Attention},
		{"target.attention", cmp.Or(old.Rows, "sdpa"), cmp.Or(m.Rows, "sdpa")},
		{"python environment", old.Environment, m.Environment},
		{"machine", old.Machine, m.Machine},
	} {
		if c.was != c.is {
			differs = append(differs, fmt.Sprintf("%s was %s, is %s", c.what, c.was, c.is))
		}
	}
	return differs, nil
}

func text(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error() // these types marshal
	}
	return string(b)
}

// writeConfig writes the resolved configuration, from which the run is resumed.
func (u *up) writeConfig() error {
	text, err := u.config.YAML()
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(u.dir.join("config.yaml"), text, 0o600); err != nil {
		return writable(u.dir.path, err)
	}
	return nil
}

// writeManifest writes the run's manifest and gives its digest. A run that was
// begun is compared with what it began with; one that fits takes over the
// configuration too.
func (u *up) writeManifest(s *settings, ix *rows.Index, p planned) (d runner.Digest, err error) {
	plan := p.config.Schedule
	m := manifest{Steps: uint64(p.steps), Buckets: p.config.Buckets, Horizon: u.config.Training.HorizonSteps,
		Schedule: schedule{plan.Peak, plan.Floor, plan.WarmUp},
		Format:   manifestFormat, Name: u.dir.name, Index: hex.EncodeToString(ix.Digest[:]), Data: hex.EncodeToString(ix.Data[:]),
		WorldSize: int(u.config.Workers.Drafters), RowsPerStep: u.config.Training.RowsPerStep, Threads: u.config.Workers.Threads,
		Attention: u.config.Drafter.Attention, Rows: u.config.Target.Attention, Environment: u.python.fingerprint, Machine: u.machine(), Placement: u.placement(), Drafter: s.drafter, Training: s.training, Target: s.target,
		Seed: u.config.Run.Seed, BitIdentical: u.config.Workers.Device == "cpu"}
	path := u.dir.join("manifest.json")
	if hasJournal(u.dir.path) {
		if m.BitIdentical, err = u.compare(m, path); err != nil {
			return d, err
		}
		if err := u.writeConfig(); err != nil {
			return d, err
		}
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return d, runner.Errorf(runner.Internal, "encode manifest: %w", err)
	}
	b = append(b, '\n') // the digest is the file's
	if err := renameio.WriteFile(path, b, 0o600); err != nil {
		return d, writable(u.dir.path, err)
	}
	return sha256.Sum256(b), nil
}

// compare says whether a resumed run still has the same bits, and tells why not.
func (u *up) compare(m manifest, path string) (same bool, err error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, runner.Errorf(runner.Invalid, "resume run %q: want its manifest.json, got none", m.Name)
	}
	if err != nil {
		return false, runner.Errorf(runner.Unavailable, "resume run %q: %w", m.Name, err)
	}
	var old manifest
	if err := json.Unmarshal(b, &old); err != nil {
		return false, runner.Errorf(runner.Invalid, "read %s: %w", path, err)
	}
	if moved := moves(old.Placement, m.Placement); moved != "" {
		u.observe(runner.Event{At: time.Now(), Level: runner.Warn, Name: "placed otherwise", Message: "since the run's last start, " + moved})
	}
	differs, err := m.against(old)
	if len(differs) > 0 {
		u.warn("resume", "not bit-identical: "+strings.Join(differs, "; "))
	}
	return m.BitIdentical && old.BitIdentical && len(differs) == 0, err
}

// moves says which workers start on other devices than before, or nothing. A
// manifest of an earlier version names no device.
func moves(was, is map[string]string) string {
	var all []string
	for _, worker := range slices.Sorted(maps.Keys(is)) {
		if was[worker] != "" && was[worker] != is[worker] {
			all = append(all, fmt.Sprintf("%s was on %s, is on %s", worker, was[worker], is[worker]))
		}
	}
	return strings.Join(all, "; ")
}

// processor names the machine's processor, as far as the kernel does.
func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range bytes.Lines(b) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(name)) == "model name" {
			return string(bytes.TrimSpace(value))
		}
	}
	return "unknown"
}
