// Package errdefs holds the one error type that users see: what went wrong,
// why, and the command that helps. Every other package returns it (or wraps
// it) for mistakes and states a user can act on; cmd/zone alone turns it into
// an exit code. It imports nothing of ours.
package errdefs

import (
	"context"
	"errors"
	"fmt"
)

// Kind says which family of problem an error belongs to. It decides the exit
// code of the command.
type Kind int

// The kinds, with the exit codes users script against.
const (
	Failed       Kind = iota // the work was tried and failed: exit 1
	Usage                    // wrong flags, names or values: exit 2
	Partial                  // some zones done, others not: exit 3
	NotFound                 // no such zone, pool, image or snapshot: exit 10
	Busy                     // locked or in use by somebody else: exit 11
	WrongState               // not allowed in the present state: exit 12
	NotSupported             // the host lacks a feature: exit 13
	Interrupted              // ended by a signal: exit 130
)

// ExitCode returns the documented exit code of the kind.
func (k Kind) ExitCode() int {
	switch k {
	case Usage:
		return 2
	case Partial:
		return 3
	case NotFound:
		return 10
	case Busy:
		return 11
	case WrongState:
		return 12
	case NotSupported:
		return 13
	case Interrupted:
		return 130
	default:
		return 1
	}
}

// Error is a problem told in the user's words.
type Error struct {
	Kind Kind
	What string // the operation and its object, lower case: "boot web1"
	Why  string // the cause, one line; empty when Err says it
	Hint string // a command that helps, or an action; may be empty
	Err  error  // the underlying error, may be nil
}

// Error gives "what: why", with the cause appended when there is one.
func (e *Error) Error() string {
	s := e.What
	if e.Why != "" {
		s = join(s, e.Why)
	}
	if e.Err != nil {
		s = join(s, e.Err.Error())
	}
	return s
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + ": " + b
}

// Unwrap returns the underlying error.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error of the given kind. why is a format for args.
func New(kind Kind, what, why string, args ...any) *Error {
	return &Error{Kind: kind, What: what, Why: fmt.Sprintf(why, args...)}
}

// Wrap returns an error of the given kind around err.
func Wrap(kind Kind, what string, err error) *Error {
	return &Error{Kind: kind, What: what, Err: err}
}

// WithHint returns the error with a command or an action that helps.
func (e *Error) WithHint(hint string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(hint, args...)
	return &c
}

// KindOf returns the kind of the first Error in err's chain; a cancelled
// context counts as Interrupted and anything else as Failed.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	if errors.Is(err, context.Canceled) {
		return Interrupted
	}
	return Failed
}

// Is reports whether err is of the given kind.
func Is(err error, kind Kind) bool {
	return err != nil && KindOf(err) == kind
}

// HintOf returns the first hint found in err and what it wraps or joins, or "".
func HintOf(err error) string {
	if e, ok := err.(*Error); ok && e.Hint != "" {
		return e.Hint
	}
	switch w := err.(type) {
	case interface{ Unwrap() error }:
		return HintOf(w.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range w.Unwrap() {
			if hint := HintOf(e); hint != "" {
				return hint
			}
		}
	}
	return ""
}
