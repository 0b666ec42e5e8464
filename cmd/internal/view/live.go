package view

import (
	"context"
	"io"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"

	"github.com/dflash-runner/dflash-runner/runner"
	"github.com/dflash-runner/dflash-runner/runner/admin"
)

// refresh is how often the view asks for a status.
const refresh = 200 * time.Millisecond

// drawings is how often a second the terminal is looked after: whatever comes
// is shown by the next, and each costs a wake-up though nothing changed.
const drawings = 10

// Live shows a run on a terminal until it is over or ctx is done. The terminal
// is in raw mode, so Ctrl-C comes as a key: the first calls stop(Graceful),
// every later one stop(Quick), as the signal handler does. stop is called from
// the view's goroutine and must return at once.
func Live(ctx context.Context, in io.Reader, out io.Writer, snapshot func() admin.Status, stop func(admin.Mode)) error {
	m := model{snapshot: snapshot, stop: stop, status: snapshot(), width: 80, style: newStyle(lipgloss.NewRenderer(out))}
	p := tea.NewProgram(m, tea.WithInput(in), tea.WithOutput(out), tea.WithoutSignalHandler(), tea.WithFPS(drawings))
	// A program whose context ends leaks its reader of the terminal; one that is told to quit does not.
	release := context.AfterFunc(ctx, p.Quit)
	defer release()
	if _, err := p.Run(); err != nil {
		return runner.Errorf(runner.Unavailable, "show live view: %w", err).WithHint("use --plain")
	}
	return nil
}

// model is the view's state. Update and View are pure but for the two funcs.
type model struct {
	snapshot func() admin.Status
	stop     func(admin.Mode)
	status   admin.Status
	stops    int // times Ctrl-C was pressed
	width    int
	style    style
}

// look is sent when it is time to ask for a status.
type look struct{}

func lookSoon() tea.Cmd { return tea.Tick(refresh, func(time.Time) tea.Msg { return look{} }) }

// Init starts the clock.
func (m model) Init() tea.Cmd { return lookSoon() }

// Update takes keys, sizes and the clock.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case look:
		m.status = m.snapshot()
		if m.status.State.Over() {
			return m, tea.Quit
		}
		return m, lookSoon()
	case tea.WindowSizeMsg:
		m.width = max(msg.Width, 20)
	case tea.KeyMsg:
		if msg.Type == tea.KeyCtrlC {
			m.stops++
			if m.stops == 1 {
				m.stop(admin.Graceful)
			} else {
				m.stop(admin.Quick)
			}
		}
	}
	return m, nil
}
