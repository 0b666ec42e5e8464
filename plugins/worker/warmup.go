package worker

import (
	"context"
	"errors"
	"fmt"
	"io"

	workerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/worker/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// WarmUp has the worker run every planned shape and returns its certificate,
// unchecked. progress may be nil and is called from this goroutine. When ctx's
// deadline passes the worker is asked for its stacks and killed; when ctx is
// canceled it is killed. Any other failure is the worker's own: it is killed
// too, since a warm-up cannot be repeated. Called once.
func (p *Process) WarmUp(ctx context.Context, progress func(*workerv1.WarmUpProgress)) (certificate *workerv1.Certificate, err error) {
	err = p.step(ctx, "warm-up", 0, func(ctx context.Context) error {
		certificate, err = p.receive(ctx, progress)
		return err
	})
	if err != nil {
		p.Kill(runner.CauseProtocol, "warm-up: "+err.Error(), runner.HintOf(err))
		return nil, runner.Errorf(kindOfCall(err), "warm up %s: %w", p.spec.Life, err)
	}
	p.setPhase("running")
	return certificate, nil
}

// receive reads the stream: progress, then exactly one certificate, then its end.
func (p *Process) receive(ctx context.Context, progress func(*workerv1.WarmUpProgress)) (*workerv1.Certificate, error) {
	stream, err := p.control.WarmUp(ctx, &workerv1.WarmUpRequest{})
	if err != nil {
		return nil, err
	}
	var certificate *workerv1.Certificate
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, refused(err, stream.Trailer())
		}
		if certificate != nil {
			return nil, runner.Errorf(runner.Invalid, "read warm-up: message after the certificate")
		}
		switch r := reply.GetReply().(type) {
		case *workerv1.WarmUpReply_Certificate:
			certificate = r.Certificate
		case *workerv1.WarmUpReply_Progress:
			p.setPhase(fmt.Sprintf("warm-up (%s, bucket %d, %d of %d)", clean(r.Progress.GetPhase(), 40),
				r.Progress.GetBucket(), r.Progress.GetDone(), r.Progress.GetTotal()))
			if progress != nil {
				progress(r.Progress)
			}
		default:
			return nil, runner.Errorf(runner.Invalid, "read warm-up: message with neither progress nor certificate")
		}
	}
	if certificate == nil {
		return nil, runner.Errorf(runner.Invalid, "read warm-up: it ended without a certificate")
	}
	return certificate, nil
}
