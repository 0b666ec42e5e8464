package host

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/dflash-runner/dflash-runner/plugins/scheduler"
	schedulerv1 "github.com/dflash-runner/dflash-runner/proto/dflash_runner/scheduler/v1"
	"github.com/dflash-runner/dflash-runner/runner"
)

// apiVersions are those that this host speaks, newest first.
var apiVersions = []uint32{scheduler.APIVersion}

// configure asks who the plugin is, checks its configuration and hands it over.
func (p *process) configure(ctx context.Context, o Options) error {
	if err := p.asks(ctx, o); err != nil {
		return err
	}
	fields, err := p.schema(ctx, o)
	if err != nil {
		return err
	}
	raw, err := encode(fields, p.entry.Config)
	if err != nil {
		return err
	}
	return p.call(ctx, o, "configure", func(ctx context.Context, opt grpc.CallOption) error {
		_, err := p.ask.Configure(ctx, &schedulerv1.ConfigureRequest{ApiVersion: p.version, Config: raw, Seed: o.Seed}, opt)
		return err
	})
}

// asks Info and judges it.
func (p *process) asks(ctx context.Context, o Options) error {
	err := p.call(ctx, o, "info", func(ctx context.Context, opt grpc.CallOption) (err error) {
		p.info, err = p.ask.Info(ctx, &schedulerv1.InfoRequest{ApiVersions: apiVersions}, opt)
		return err
	})
	if err != nil {
		return err
	}
	name := p.info.GetName()
	if !nameRule.MatchString(name) || p.entry.Name != "" && name != p.entry.Name {
		want := p.entry.Name
		if want == "" {
			want = "a name of a-z, 0-9 and '-'"
		}
		return runner.Errorf(runner.Invalid, "info: name: want %s, got %.80q", want, name)
	}
	if v := p.info.GetVersion(); len(v) > 80 || strings.ContainsFunc(v, unicode.IsControl) { // people read it on terminals
		return runner.Errorf(runner.Invalid, "info: version: want one line of at most 80 bytes, got %d: %.80q", len(v), v)
	}
	for _, v := range apiVersions {
		if slices.Contains(p.info.GetApiVersions(), v) {
			p.version = v
			break
		}
	}
	if p.version == 0 {
		return runner.Errorf(runner.Invalid, "info: API version: want one of %v, got %v", apiVersions, p.info.GetApiVersions()[:min(8, len(p.info.GetApiVersions()))])
	}
	p.can = map[scheduler.Capability]bool{}
	for _, c := range p.info.GetCapabilities() {
		if word, ok := words[c]; ok {
			p.can[word] = true
		}
	}
	return nil
}

var words = map[schedulerv1.Capability]scheduler.Capability{schedulerv1.Capability_CAPABILITY_PLACE: scheduler.Place, schedulerv1.Capability_CAPABILITY_ARRANGE: scheduler.Arrange,
	schedulerv1.Capability_CAPABILITY_ASSIGN: scheduler.Assign, schedulerv1.Capability_CAPABILITY_ON_FAILURE: scheduler.OnFailure, schedulerv1.Capability_CAPABILITY_OBSERVE: scheduler.Observe}

// capabilities gives what the plugin can do, sorted.
func (p *process) capabilities() []scheduler.Capability {
	out := []scheduler.Capability{}
	for c := range p.can {
		out = append(out, c)
	}
	slices.Sort(out)
	return out
}

func (p *process) schema(ctx context.Context, o Options) ([]*schedulerv1.Field, error) {
	var reply *schedulerv1.ConfigSchemaReply
	err := p.call(ctx, o, "config schema", func(ctx context.Context, opt grpc.CallOption) (err error) {
		reply, err = p.ask.ConfigSchema(ctx, &schedulerv1.ConfigSchemaRequest{}, opt)
		return err
	})
	if err != nil {
		return nil, err
	}
	return reply.GetFields(), checkSchema(reply.GetFields())
}

// flood is how much a plugin may print during a question that it does not answer
// in time, in bytes, before the printing is named beside that.
const flood = 256 << 10

// call asks one question under the deadline, and says what went wrong in our words.
func (p *process) call(ctx context.Context, o Options, what string, f func(context.Context, grpc.CallOption) error) error {
	defer o.Waits.begin(what, o.Call)()
	timed, cancel := context.WithTimeout(ctx, o.Call)
	defer cancel()
	var trailer metadata.MD
	before := p.hosted.Printed()
	err := f(timed, grpc.Trailer(&trailer))
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return runner.Errorf(runner.Canceled, "%s: %w", what, context.Cause(ctx))
	case timed.Err() != nil, len(trailer.Get(scheduler.KindTrailer)) == 0 && (status.Code(err) == codes.Canceled || status.Code(err) == codes.DeadlineExceeded): // the plugin's side may count first
		late := runner.Errorf(runner.Unavailable, "%s: no answer within %s", what, o.Call)
		if p.hosted.Printed()-before >= flood { // no figure: each would be another reason to be degraded
			late.Msg += " while it flooded its log"
			late = late.WithHint("printing takes the time that the answer has")
		}
		return late
	}
	return said(what, err, trailer)
}

// said gives an error of a plugin, which it told at the end of a call or on a
// stream, or which is ours about a stream.
func said(what string, err error, trailer metadata.MD) error {
	var ours *runner.Error
	if errors.As(err, &ours) {
		return runner.Errorf(ours.Kind, "%s: %w", what, ours)
	}
	kind, message, hint := runner.Unavailable, status.Convert(err).Message(), ""
	if names := trailer.Get(scheduler.KindTrailer); len(names) == 1 {
		kind, _ = runner.ParseKind(names[0])
	}
	if hints := trailer.Get(scheduler.HintTrailer); len(hints) == 1 {
		hint = hints[0]
	}
	if own := (refusal{}); errors.As(err, &own) {
		kind, _ = runner.ParseKind(own.GetKind())
		message, hint = own.GetMessage(), own.GetHint()
	}
	e := runner.Errorf(kind, "%s: %.400q", what, message)
	if hint != "" {
		e = e.WithHint("%.400s", hint)
	}
	return e
}
