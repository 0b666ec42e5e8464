package worker

import (
	"errors"
	"io"

	"google.golang.org/grpc/metadata"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Trailing metadata of a call that failed: the error's kind, and its hint.
// These names agree with python/dflash_runner/worker/control.py.
const (
	kindKey = "dflash-runner-kind"
	hintKey = "dflash-runner-hint-bin"
)

// refusal is an error that came over the control plane. Kind is "" where the
// worker itself did not say it: then gRPC did.
type refusal struct {
	err  error
	kind string
	hint string
}

// refused wraps an error of a call with what its trailer says; nil stays nil.
func refused(err error, trailer metadata.MD) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return &refusal{err, first(trailer.Get(kindKey)), clean(first(trailer.Get(hintKey)), fieldWidth)}
}

// Error gives gRPC's error.
func (r *refusal) Error() string { return clean(r.err.Error(), messageWidth) }

// Unwrap gives gRPC's error.
func (r *refusal) Unwrap() error { return r.err }

// kindOfCall finds the kind of an error of a call: ours, the worker's, or that
// it may be tried again with a new worker.
func kindOfCall(err error) runner.Kind {
	var own *runner.Error
	if errors.As(err, &own) {
		return own.Kind
	}
	var r *refusal
	if errors.As(err, &r) {
		if kind, ok := runner.ParseKind(r.kind); ok {
			return kind
		}
	}
	return runner.Unavailable
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
