package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// Mode is how a run is asked to end.
type Mode string

// The modes.
const (
	Graceful Mode = "graceful" // a checkpoint first
	Quick    Mode = "quick"    // at once; nothing is left running
)

// Source is the run behind the server. Its methods are called from the
// connections' goroutines, at any time, and do not wait for the loop's work.
type Source interface {
	// Status gives a snapshot that nobody changes any more.
	Status() Status
	// Stop asks the run to end and returns at once.
	Stop(mode Mode) error
	// Checkpoint asks for a checkpoint as soon as a step is decided, and returns at once.
	Checkpoint() error
	// Events yields the run's events as JSON objects, from the one after `after`
	// (counted from 1) on; with follow it goes on until ctx is done or the run ends.
	Events(ctx context.Context, after uint64, follow bool) iter.Seq[[]byte]
	// Metrics answers in the Prometheus text format.
	Metrics() http.Handler
}

// maxBody bounds what a client may send.
const maxBody = 4 << 10

// Server answers on a run's socket.
type Server struct {
	source Source
	http   *http.Server
	stop   context.CancelFunc // ends streams
}

// NewServer makes a server for a run. Nothing is started.
func NewServer(source Source) *Server {
	s := &Server{source: source}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, source.Status()) })
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, Judge(source.Status(), time.Now()))
	})
	mux.HandleFunc("GET /v1/events", s.events)
	mux.HandleFunc("POST /v1/stop", s.stopRun)
	mux.HandleFunc("POST /v1/checkpoint", s.checkpoint)
	mux.Handle("GET /metrics", source.Metrics())
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	return s
}

// Serve answers until Shutdown; it then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return runner.Errorf(runner.Unavailable, "serve the run's socket: %w", err)
	}
	return nil
}

// Shutdown ends streams, lets short answers finish until ctx is done, then
// closes every connection.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	return err
}

// reply writes one JSON value.
func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the reader went away: nobody to tell
}

// failure is an error on the wire.
type failure struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
}

var codes = map[runner.Kind]int{
	runner.Invalid: http.StatusBadRequest, runner.NotFound: http.StatusNotFound,
	runner.Unavailable: http.StatusServiceUnavailable, runner.Exhausted: http.StatusInsufficientStorage,
	runner.Stale: http.StatusConflict,
}

// refuse writes an error.
func refuse(w http.ResponseWriter, err error) {
	code, ok := codes[runner.KindOf(err)]
	if !ok {
		code = http.StatusInternalServerError
	}
	reply(w, code, failure{runner.KindOf(err).String(), err.Error(), runner.HintOf(err)})
}

// stopRun reads {"mode": "graceful" or "quick"}.
func (s *Server) stopRun(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Mode Mode `json:"mode"`
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	err := d.Decode(&ask)
	if err == nil {
		if _, extra := d.Token(); !errors.Is(extra, io.EOF) {
			err = errors.New("want one object, got more")
		}
	}
	switch {
	case err != nil:
		refuse(w, runner.Errorf(runner.Invalid, "stop run: want {\"mode\": \"graceful\"}: %w", err))
	case ask.Mode != Graceful && ask.Mode != Quick:
		refuse(w, runner.Errorf(runner.Invalid, "stop run: want mode graceful or quick, got %q", ask.Mode))
	default:
		s.accept(w, s.source.Stop(ask.Mode))
	}
}

func (s *Server) checkpoint(w http.ResponseWriter, _ *http.Request) {
	s.accept(w, s.source.Checkpoint())
}

// accept answers with the status at the moment of asking.
func (s *Server) accept(w http.ResponseWriter, err error) {
	if err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusAccepted, s.source.Status())
}

// events streams JSON lines: ?after=N to go on after the Nth, ?follow to wait
// for more.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	after, err := uint64(0), error(nil)
	if text := q.Get("after"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			refuse(w, runner.Errorf(runner.Invalid, "stream events: want after=N, got %q", text))
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // a stream outlives the deadline of a question
	for line := range s.source.Events(r.Context(), after, q.Has("follow")) {
		if _, err := w.Write(append(line[:len(line):len(line)], '\n')); err != nil {
			return // the reader went away
		}
		if err := out.Flush(); err != nil {
			return
		}
	}
}
