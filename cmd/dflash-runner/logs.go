package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/dflash-runner/dflash-runner/cmd/internal/view"
	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

func (c *cli) logsCommand() *cobra.Command {
	var follow, failure bool
	cmd := &cobra.Command{
		Use:   "logs [WORKER] [RUN]",
		Short: "Show what a worker wrote, or how workers died",
		Long: "Shows the log of a worker's newest generation, of a scheduling plugin's newest start, or of a stage such as\n" +
			"target; drafter/0.2 and scheduler-NAME.2 name an earlier one. With -f it goes on,\n" +
			"through later generations, until the run ends. Without a worker the run's logs are listed.\n" +
			"With --failure the reports of deaths are shown instead. One argument alone that names neither a\n" +
			"worker nor a log of the newest run names a run.",
		Example: "  dflash-runner logs -f drafter/0\n  dflash-runner logs --failure\n  dflash-runner logs --failure cpu-tiny\n  dflash-runner logs target cpu-tiny",
		Args:    atMost(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, name, err := c.whichLog(args)
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			switch {
			case failure:
				return c.failures(ctx, dir, name)
			case name == "":
				return c.listLogs(dir)
			}
			return c.showLogs(ctx, dir, name, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "wait for more, until the run ends")
	cmd.Flags().BoolVar(&failure, "failure", false, "show the reports of deaths")
	return c.jsonFlag(cmd)
}

// whichLog tells the run and the log's name from the arguments.
func (c *cli) whichLog(args []string) (dir, name string, err error) {
	if len(args) == 1 && !workerName(args[0]) {
		newest, err := admin.Find(c.runs, "")
		if err == nil {
			_, err = newestLog(newest, args[0])
		}
		if err != nil { // a log of the newest run comes first
			if dir, err := admin.Find(c.runs, args[0]); err == nil {
				return dir, "", nil
			}
		}
	}
	if len(args) > 0 {
		name = args[0]
	}
	dir, err = c.find(args, 1)
	return dir, name, err
}

// logFile is one log of a run: name is "drafter/0", a plugin's or a stage's.
type logFile struct {
	Name       string `json:"name"`
	Generation int    `json:"generation"` // 0: neither a worker's nor a plugin's
	Path       string `json:"path"`
	Bytes      int64  `json:"bytes"`
}

var (
	workerLog = regexp.MustCompile(`^(target|drafter)-(\d+)\.(\d+)\.log$`)
	pluginLog = regexp.MustCompile(`^(scheduler-[a-z0-9-]+)\.(\d+)\.log$`) // its generations are its starts
)

// logFiles lists a run's logs, by name and generation.
func logFiles(dir string) ([]logFile, error) {
	found, err := os.ReadDir(filepath.Join(dir, "logs"))
	if err != nil {
		return nil, runner.Errorf(runner.NotFound, "list logs: %w", err)
	}
	var logs []logFile
	for _, e := range found {
		l := logFile{Name: strings.TrimSuffix(e.Name(), ".log"), Path: filepath.Join(dir, "logs", e.Name())}
		if m := workerLog.FindStringSubmatch(e.Name()); m != nil {
			l.Name = m[1] + "/" + m[2]
			l.Generation, _ = strconv.Atoi(m[3]) // digits, by the pattern
		}
		if m := pluginLog.FindStringSubmatch(e.Name()); m != nil {
			l.Name = m[1]
			l.Generation, _ = strconv.Atoi(m[2])
		}
		if s, err := e.Info(); err == nil {
			l.Bytes = s.Size()
		}
		logs = append(logs, l)
	}
	slices.SortFunc(logs, func(a, b logFile) int {
		if d := strings.Compare(a.Name, b.Name); d != 0 {
			return d
		}
		return a.Generation - b.Generation
	})
	return logs, nil
}

func (c *cli) listLogs(dir string) error {
	logs, err := logFiles(dir)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(logs)
	}
	for _, l := range logs {
		if err := c.print("%-16s %4d  %9d bytes  %s\n", l.Name, l.Generation, l.Bytes, l.Path); err != nil {
			return err
		}
	}
	return nil
}

// newestLog finds the log of the newest generation of a name; "drafter-0" and
// "drafter/0.2" name it as well.
func newestLog(dir, name string) (logFile, error) {
	logs, err := logFiles(dir)
	if err != nil {
		return logFile{}, err
	}
	newest, known := logFile{}, []string{}
	for _, l := range logs {
		exact := fmt.Sprintf("%s.%d", l.Name, l.Generation)
		if name == l.Name || name == strings.Replace(l.Name, "/", "-", 1) || name == exact {
			newest = l
		}
		if !slices.Contains(known, l.Name) {
			known = append(known, l.Name)
		}
	}
	if newest.Path == "" {
		return newest, runner.Errorf(runner.NotFound, "show log of %q: there is none in %s", name, dir).
			WithHint("there are logs of: %s", strings.Join(known, ", "))
	}
	return newest, nil
}

// showLogs prints a log; following, it goes on with the next generation's.
func (c *cli) showLogs(ctx context.Context, dir, name string, follow bool) error {
	now, err := newestLog(dir, name)
	if err != nil && follow && workerName(name) && !over(dir) {
		now, err = c.awaitLog(ctx, dir, name)
	}
	for err == nil {
		var next logFile
		newer := func() bool {
			l, err := newestLog(dir, name)
			next = l
			return err == nil && l.Generation > now.Generation || over(dir)
		}
		for line, readErr := range admin.Tail(ctx, now.Path, 0, follow, newer) {
			if readErr != nil {
				return runner.Errorf(runner.Unavailable, "read log: %w", readErr)
			}
			if err := c.print("%s\n", view.OneLine(string(line))); err != nil {
				return err
			}
		}
		if next.Generation <= now.Generation || ctx.Err() != nil {
			if follow {
				c.noteLost(dir)
			}
			return nil
		}
		c.tell("note", fmt.Sprintf("%s goes on as generation %d", next.Name, next.Generation))
		now = next
	}
	return err
}

// workerName reports whether a log's name is a worker's, which comes to be when
// it is launched.
func workerName(name string) bool {
	_, err := runner.ParseWorker(strings.Replace(name, "-", "/", 1)) // as log files spell it
	return err == nil
}

// awaitLog waits for a worker's first log, until the run is over.
func (c *cli) awaitLog(ctx context.Context, dir, name string) (logFile, error) {
	c.tell("note", name+" is not launched yet: waiting")
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		now, err := newestLog(dir, name)
		if err == nil || over(dir) {
			return now, err
		}
		select {
		case <-ctx.Done():
			return now, runner.Errorf(runner.Canceled, "show log of %q: interrupted before there was one", name)
		case <-tick.C:
		}
	}
}

// failures prints the reports of deaths, of all workers or one.
func (c *cli) failures(ctx context.Context, dir, name string) error {
	shot, err := admin.Open(ctx, dir)
	if err != nil {
		return err
	}
	if name != "" && !workerName(name) {
		return runner.Errorf(runner.Invalid, "show failures of %q: it is neither a worker nor a run", name).
			WithHint("workers are named target/0 or drafter/1; `dflash-runner status` lists them")
	}
	reports := []runner.Failure{}
	for _, f := range shot.Failures {
		if name == "" || f.Worker.String() == name || f.Worker.FileName() == name {
			reports = append(reports, f)
		}
	}
	if c.json {
		return c.printJSON(reports)
	}
	if len(reports) == 0 {
		c.tell("note", "no worker has died")
	}
	for _, in := range runner.Incidents(reports) {
		for _, line := range view.Incident(in) {
			if err := c.print("%s\n", line); err != nil {
				return err
			}
		}
	}
	return nil
}
