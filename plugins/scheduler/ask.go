package scheduler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"

	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// answer is around every call of the plugin's service: it tells errors in the
// host's words. go-plugin's own services are left alone.
func answer(ctx context.Context, q any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if _, ours := info.Server.(*server); !ours {
		return handle(ctx, q)
	}
	reply, err := guarded(func() (any, error) { return handle(ctx, q) })
	if err != nil {
		return nil, tell(ctx, err)
	}
	return reply, nil
}

// guarded makes a panic the error of one question; its trace goes to the log.
func guarded[A any](f func() (A, error)) (a A, err error) {
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "panic: %v\n\n%s", p, debug.Stack())
			err = Errorf(runner.Internal, "the plugin panicked: %v", p)
		}
	}()
	return f()
}

// Ask implements schedulerv1.SchedulerServer: it answers one question after
// another, until the host ends the stream or is gone.
func (s *server) Ask(stream schedulerv1.Scheduler_AskServer) error {
	for {
		q, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(s.answerOf(stream.Context(), q)); err != nil {
			return err
		}
	}
}

// answerOf answers one question within its deadline.
func (s *server) answerOf(ctx context.Context, q *schedulerv1.Question) *schedulerv1.Answer {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(q.GetDeadlineMs())*time.Millisecond)
	defer cancel()
	out, err := guarded(func() (*schedulerv1.Answer, error) { return s.reply(ctx, q) })
	if err != nil {
		own := reason(err)
		out = &schedulerv1.Answer{Answer: &schedulerv1.Answer_Refusal{Refusal: &schedulerv1.Refusal{Kind: own.Kind.String(),
			Message: strings.ToValidUTF8(err.Error(), "?"), Hint: strings.ToValidUTF8(own.Hint, "?")}}}
	}
	out.Number = q.GetNumber()
	return out
}

// reply asks what a question asks.
func (s *server) reply(ctx context.Context, q *schedulerv1.Question) (*schedulerv1.Answer, error) {
	switch x := q.GetQuestion().(type) {
	case *schedulerv1.Question_Arrange:
		reply, err := s.Arrange(ctx, x.Arrange)
		return &schedulerv1.Answer{Answer: &schedulerv1.Answer_Arrange{Arrange: reply}}, err
	case *schedulerv1.Question_Assign:
		reply, err := s.Assign(ctx, x.Assign)
		return &schedulerv1.Answer{Answer: &schedulerv1.Answer_Assign{Assign: reply}}, err
	}
	return nil, Errorf(runner.NotFound, "ask: want arrange or assign, got another question")
}
