package patch

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"zone/internal/errdefs"
)

const keptLines = 20

// outputLog is the log of a zone's programs: all of it goes to a file, the end
// of it is kept for the report. Safe for several goroutines.
type outputLog struct {
	mu   sync.Mutex // guards all below
	file io.WriteCloser
	buf  []byte
	full bool // "no space left" was said
}

func newOutputLog(w io.WriteCloser) *outputLog { return &outputLog{file: w} }

// Write keeps p. That the log's own file is full stops nothing.
func (l *outputLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_, _ = l.file.Write(p)
	}
	l.buf = append(l.buf, p...)
	if !l.full {
		l.full = saysFull(string(l.buf))
	}
	if over := len(l.buf) - 8<<10; over > 0 {
		l.buf = append(l.buf[:0], l.buf[over:]...)
	}
	return len(p), nil
}

// trace notes a command in the file alone: the report's last lines are what
// programs said.
func (l *outputLog) trace(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		fmt.Fprintf(l.file, format, args...)
	}
}

func saysFull(s string) bool {
	return strings.Contains(s, "No space left on device") || strings.Contains(s, "Disk quota exceeded") ||
		strings.Contains(s, "no space left on device")
}

// tail returns the last lines.
func (l *outputLog) tail() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(l.buf)), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return nil
	}
	return lines[max(0, len(lines)-keptLines):]
}

// explain says in one line why err happened.
func (l *outputLog) explain(err error) string {
	l.mu.Lock()
	full := l.full
	l.mu.Unlock()
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	var e *errdefs.Error
	if errors.As(err, &e) && e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	if full || saysFull(text) {
		return "no space left in the zone's pool or under its quota: " + text
	}
	return text
}

func (l *outputLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}
