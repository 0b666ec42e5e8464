package scheduler

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/dflash-runner/dflash-runner/runner"
)

// The trailer that carries an error's kind and hint.
const (
	KindTrailer = "dflash-runner-kind"
	HintTrailer = "dflash-runner-hint-bin"
)

// Error says why a plugin gives no answer. The message is lowercase: what was
// wanted, what was got.
type Error struct {
	Kind runner.Kind
	Msg  string
	Hint string // what a person can do, or empty
}

// Errorf makes an Error.
func Errorf(k runner.Kind, format string, a ...any) *Error {
	return &Error{Kind: k, Msg: fmt.Sprintf(format, a...)}
}

// WithHint returns a copy of e that says what to do.
func (e *Error) WithHint(format string, a ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, a...)
	return &c
}

// Error gives the message without the hint.
func (e *Error) Error() string { return e.Msg }

// code is gRPC's name for a kind.
func code(k runner.Kind) codes.Code {
	switch k {
	case runner.Invalid:
		return codes.InvalidArgument
	case runner.NotFound:
		return codes.NotFound
	case runner.Exhausted:
		return codes.ResourceExhausted
	case runner.Unavailable:
		return codes.Unavailable
	case runner.Canceled:
		return codes.Canceled
	}
	return codes.Internal
}

// reason gives the kind and hint of a plugin's error.
func reason(err error) *Error {
	var own *Error
	if !errors.As(err, &own) {
		own = &Error{Kind: runner.KindOf(err), Hint: runner.HintOf(err)}
	}
	return own
}

// tell turns a plugin's error into what travels as the end of a call.
func tell(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	own := reason(err)
	trailer := metadata.Pairs(KindTrailer, own.Kind.String())
	if own.Hint != "" {
		trailer.Append(HintTrailer, own.Hint)
	}
	if e := grpc.SetTrailer(ctx, trailer); e != nil {
		return status.Error(codes.Internal, e.Error())
	}
	return status.Error(code(own.Kind), err.Error())
}
