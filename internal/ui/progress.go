package ui

import (
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/term"
)

// Progress tells a person how far long work has come. Its methods may be
// called from several goroutines at once.
type Progress interface {
	// Status says what is going on now; a later status replaces it.
	Status(format string, args ...any)
	// Line prints a line that stays.
	Line(format string, args ...any)
	// Done takes the status away; call it when the work ends. The reporter
	// can be used again after it.
	Done()
}

// statusInterval is how often a status is repeated where it cannot be
// rewritten in place: rare enough for a log, often enough to show life.
const statusInterval = 5 * time.Second

// IsTerminal reports whether v is an open file that is a terminal.
func IsTerminal(v any) bool {
	f, ok := v.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}

// NewProgress returns a reporter that writes to w. On a terminal the status is
// one line rewritten in place; elsewhere it is printed as a line when it has
// changed, at most every five seconds.
func NewProgress(w io.Writer, terminal bool) Progress {
	if terminal {
		return &terminalProgress{w: w, width: func() int { return terminalWidth(w) }}
	}
	return &plainProgress{w: w, now: time.Now}
}

// eraseLine moves to the start of the line and clears it.
const eraseLine = "\r\x1b[K"

type terminalProgress struct {
	w     io.Writer
	width func() int // columns; 0 when not known

	mu     sync.Mutex // guards status, and keeps writes whole
	status string
}

func (p *terminalProgress) Status(format string, args ...any) {
	s := Printable(fmt.Sprintf(format, args...))
	// A status that wraps could not be erased again.
	if r, width := []rune(s), p.width(); width > 0 && len(r) >= width {
		s = string(r[:width-1])
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if s != p.status {
		p.status = s
		io.WriteString(p.w, eraseLine+s)
	}
}

func (p *terminalProgress) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf(format, args...) + "\n" + p.status
	if p.status != "" {
		line = eraseLine + line
	}
	io.WriteString(p.w, line)
}

func (p *terminalProgress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.status != "" {
		p.status = ""
		io.WriteString(p.w, eraseLine)
	}
}

func terminalWidth(w io.Writer) int {
	f, ok := w.(interface{ Fd() uintptr })
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

type plainProgress struct {
	w   io.Writer
	now func() time.Time

	mu      sync.Mutex // guards the rest, and keeps writes whole
	status  string
	printed time.Time
}

func (p *plainProgress) Status(format string, args ...any) {
	s := Printable(fmt.Sprintf(format, args...))
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	if s == "" || s == p.status || !p.printed.IsZero() && now.Sub(p.printed) < statusInterval {
		return
	}
	p.status, p.printed = s, now
	io.WriteString(p.w, s+"\n")
}

func (p *plainProgress) Line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, format+"\n", args...)
}

func (p *plainProgress) Done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.printed = "", time.Time{}
}
