package scheduler

import (
	"context"

	"github.com/dflash-runner/dflash-runner/runner"
)

// APIVersion is the version of the questions that this package speaks.
const APIVersion = 1

// Scheduler is what every plugin implements; [Base] does all of it but Info.
type Scheduler interface {
	// Info says who this is. It is called at any time and gives the same always;
	// capabilities and API versions are filled in by Serve.
	Info() Info
	// Schema gives the keys of the configuration. Called before Configure.
	Schema() []Field
	// Configure takes the configuration, once, before any question. An error
	// refuses it: the plugin is not used.
	Configure(ctx context.Context, c Config) error
}

// Arranger gives the order of samples.
type Arranger interface {
	// Arrange gives q.Count samples of q.Pool, each as often as it stands there at
	// most. It is called again for the next part of the epoch.
	Arrange(ctx context.Context, q ArrangeRequest) ([]runner.Sample, error)
}

// Assigner chooses targets.
type Assigner interface {
	// Assign gives one of q.Free. It is asked only where there are several; no
	// target makes the row before the answer or the deadline.
	Assign(ctx context.Context, q AssignRequest) (runner.Worker, error)
}

// Placer chooses devices.
type Placer interface {
	// Place gives every worker of q.Needs one device of q.Devices.
	Place(ctx context.Context, q PlaceRequest) ([]Placement, error)
}

// FailureJudge decides about deaths.
type FailureJudge interface {
	// OnFailure says what is done about a worker's death.
	OnFailure(ctx context.Context, q FailureRequest) (Verdict, error)
}

// Observer is told what happens.
type Observer interface {
	// Observe is called from one goroutine, in order. Events may be missing: a gap
	// in their numbers says so. While it does not return, events wait, then more are lost.
	Observe(e Event)
}

// Base is embedded by plugins: it has an empty configuration.
type Base struct{}

// Schema gives no keys.
func (Base) Schema() []Field { return nil }

// Configure takes the empty configuration.
func (Base) Configure(context.Context, Config) error { return nil }
