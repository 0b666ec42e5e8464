package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/dflash-runner/dflash-runner/runner"
)

// maxAnswer bounds what a client reads of a status.
const maxAnswer = 16 << 20

// Client asks one run.
type Client struct {
	http *http.Client
	path string
}

// Connect finds the socket of the run in a directory and asks it once. The
// error is of kind Unavailable when nobody answers.
func Connect(ctx context.Context, directory string) (*Client, error) {
	path := filepath.Join(directory, SocketName)
	if target, err := os.Readlink(path); err == nil {
		path = target
	} else if short, err := SocketPath(directory); err == nil {
		path = short
	}
	c := &Client{path: path}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true, // no goroutine outlives a call
	}}
	conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "connect to run: %w", err)
	}
	_ = conn.Close()
	return c, nil
}

// Status asks for a snapshot.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.ask(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Health asks for the run's own judgement.
func (c *Client) Health(ctx context.Context) (h Health, err error) {
	return h, c.ask(ctx, http.MethodGet, "/v1/health", nil, &h)
}

// Stop asks the run to end; it does not wait for the end.
func (c *Client) Stop(ctx context.Context, mode Mode) error {
	return c.ask(ctx, http.MethodPost, "/v1/stop", map[string]Mode{"mode": mode}, nil)
}

// Checkpoint asks for a checkpoint.
func (c *Client) Checkpoint(ctx context.Context) error {
	return c.ask(ctx, http.MethodPost, "/v1/checkpoint", nil, nil)
}

// Events opens the stream of events; the caller closes it.
func (c *Client) Events(ctx context.Context, follow bool) (io.ReadCloser, error) {
	path := "/v1/events"
	if follow {
		path += "?follow"
	}
	resp, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// ask sends one question and decodes its answer.
func (c *Client) ask(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return runner.Errorf(runner.Internal, "ask run: %w", err)
		}
	}
	resp, err := c.do(ctx, method, path, text)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(into); err != nil {
		return runner.Errorf(runner.Unavailable, "ask run for %s: %w", path, err)
	}
	return nil
}

// do sends a request; an answer that is not 2xx becomes the run's own error.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://run"+path, bytes.NewReader(body))
	if err != nil {
		return nil, runner.Errorf(runner.Internal, "ask run: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, runner.Errorf(runner.Unavailable, "ask run for %s: %w", path, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	var f failure
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&f); err != nil || f.Message == "" {
		return nil, runner.Errorf(runner.Unavailable, "ask run for %s: got %s", path, resp.Status)
	}
	kind, _ := runner.ParseKind(f.Kind)
	return nil, &runner.Error{Kind: kind, Msg: f.Message, Hint: f.Hint}
}
