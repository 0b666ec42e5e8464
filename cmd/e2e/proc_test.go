package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// seen is a living process of a run.
type seen struct {
	pid     int
	command string
}

func (s seen) String() string { return fmt.Sprintf("%d (%s)", s.pid, s.command) }

// processes finds what lives of this home's runs, by the mark in the
// environment that it was started with; zombies do not live.
func (h *home) processes() (found []seen) {
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range all {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(environ, []byte(h.mark+"\x00")) {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || strings.HasPrefix(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " Z") {
			continue
		}
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		found = append(found, seen{pid, strings.ReplaceAll(strings.TrimRight(string(line), "\x00"), "\x00", " ")})
	}
	return found
}

// left waits for all of them to be gone, and gives those that are not.
func (h *home) left(within time.Duration) []seen {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(within); ; {
		found := h.processes()
		if len(found) == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-late:
			return found
		}
	}
}

// workers counts the Python processes among them.
func (h *home) workers() (n int) {
	for _, p := range h.processes() {
		if strings.Contains(p.command, "dflash_runner.serve") {
			n++
		}
	}
	return n
}
