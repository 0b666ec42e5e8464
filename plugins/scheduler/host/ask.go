package host

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// stream is where the questions of one kind are asked that are asked often. A
// message on an open stream costs about half of a call. It is opened by the
// first question, and ends with the connection.
type stream struct {
	mu   sync.Mutex // held from a question to its answer; guards below
	open schedulerv1.Scheduler_AskClient
	life context.Context
	drop context.CancelFunc // ends life; nil: the next question opens the stream
}

// arrange asks on the stream of its kind; by a call where the plugin has no
// streams, or a question stands there: then neither waits for the other.
func (p *process) arrange(ctx context.Context, q scheduler.ArrangeRequest, opt grpc.CallOption) (*schedulerv1.ArrangeReply, error) {
	if !p.info.GetAsk() || !p.arranging.mu.TryLock() {
		return p.ask.Arrange(ctx, arrangeMessage(q), opt)
	}
	defer p.arranging.mu.Unlock()
	a, err := p.arranging.asked(ctx, p.ask, arrangeQuestion(q))
	return a.GetArrange(), err
}

// assign is arrange of an assignment.
func (p *process) assign(ctx context.Context, q *schedulerv1.AssignRequest, opt grpc.CallOption) (*schedulerv1.AssignReply, error) {
	if !p.info.GetAsk() || !p.assigning.mu.TryLock() {
		return p.ask.Assign(ctx, q, opt)
	}
	defer p.assigning.mu.Unlock()
	a, err := p.assigning.asked(ctx, p.ask, &schedulerv1.Question{Question: &schedulerv1.Question_Assign{Assign: q}})
	return a.GetAssign(), err
}

// asked asks and waits until the end of ctx, which has a deadline. A stream that
// gave anything but the answer is dropped: what it still brings goes nowhere.
// Under the lock.
func (s *stream) asked(ctx context.Context, ask schedulerv1.SchedulerClient, q *schedulerv1.Question) (*schedulerv1.Answer, error) {
	if s.drop == nil {
		s.life, s.drop = context.WithCancel(context.Background()) // until the connection ends
	}
	giveUp := context.AfterFunc(ctx, s.drop) // frees what waits below
	a, err := s.exchange(ctx, ask, q)
	if !giveUp() || err != nil {
		s.drop()
		s.open, s.drop = nil, nil
	}
	if err == nil && a.GetRefusal() != nil {
		return nil, refusal{a.GetRefusal()}
	}
	return a, err
}

// exchange sends a question and takes its answer. The number is drawn: nobody
// can answer before he was asked.
func (s *stream) exchange(ctx context.Context, ask schedulerv1.SchedulerClient, q *schedulerv1.Question) (_ *schedulerv1.Answer, err error) {
	if s.open == nil {
		if s.open, err = ask.Ask(s.life); err != nil {
			return nil, err
		}
	}
	until, _ := ctx.Deadline()
	q.Number = rand.Uint32()
	q.DeadlineMs = uint32(max(0, time.Until(until).Milliseconds()) + 1) // ours ends first
	if err := s.open.Send(q); err != nil && !errors.Is(err, io.EOF) {   // of an ended stream Recv says why
		return nil, err
	}
	a, err := s.open.Recv()
	switch {
	case errors.Is(err, io.EOF):
		return nil, runner.Errorf(runner.Unavailable, "it ended the stream of questions")
	case err != nil:
		return nil, err
	case !time.Now().Before(until): // the timer is late itself
		<-ctx.Done()
		return nil, ctx.Err()
	case a.GetNumber() != q.Number:
		return nil, runner.Errorf(runner.Invalid, "want an answer to question %d, got one to %d, which is not asked", q.Number, a.GetNumber())
	}
	return a, answers(q, a)
}

// answers says what is wrong with the kind of an answer, or nothing.
func answers(q *schedulerv1.Question, a *schedulerv1.Answer) error {
	got := "nothing"
	switch a.GetAnswer().(type) {
	case *schedulerv1.Answer_Refusal:
		return nil
	case *schedulerv1.Answer_Arrange:
		if q.GetArrange() != nil {
			return nil
		}
		got = "an arrangement"
	case *schedulerv1.Answer_Assign:
		if q.GetAssign() != nil {
			return nil
		}
		got = "an assignment"
	}
	return runner.Errorf(runner.Invalid, "want a reply of the question's kind or a refusal, got %s", got)
}

// refusal is a plugin's own reason for giving no answer, as a stream brings it.
type refusal struct{ *schedulerv1.Refusal }

// Error gives the plugin's message.
func (r refusal) Error() string { return r.GetMessage() }
