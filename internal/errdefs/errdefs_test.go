package errdefs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"zone/internal/errdefs"
)

// The codes are what scripts rely on: docs and --help tell the same.
func TestExitCodes(t *testing.T) {
	for kind, want := range map[errdefs.Kind]int{
		errdefs.Failed: 1, errdefs.Usage: 2, errdefs.Partial: 3, errdefs.NotFound: 10, errdefs.Busy: 11,
		errdefs.WrongState: 12, errdefs.NotSupported: 13, errdefs.Interrupted: 130, errdefs.Kind(99): 1, errdefs.Kind(-1): 1,
	} {
		if got := kind.ExitCode(); got != want {
			t.Errorf("kind %d: exit code %d, want %d", kind, got, want)
		}
	}
}

func TestKindOf(t *testing.T) {
	busy := errdefs.New(errdefs.Busy, "boot a", "locked")
	plain := errors.New("plain")
	for _, c := range []struct {
		name string
		err  error
		want errdefs.Kind
	}{
		{"nil", nil, errdefs.Failed},
		{"plain", plain, errdefs.Failed},
		{"itself", busy, errdefs.Busy},
		{"wrapped", fmt.Errorf("a: %w", fmt.Errorf("b: %w", busy)), errdefs.Busy},
		{"joined", errors.Join(plain, busy), errdefs.Busy},
		{"joined twice", errors.Join(errors.Join(plain), fmt.Errorf("x: %w", errors.Join(busy))), errdefs.Busy},
		{"the outer counts", errdefs.Wrap(errdefs.WrongState, "delete a", busy), errdefs.WrongState},
		{"the first of several", errors.Join(errdefs.New(errdefs.NotFound, "x", "y"), busy), errdefs.NotFound},
		{"with a hint", busy.WithHint("try"), errdefs.Busy},
		{"cancelled", fmt.Errorf("x: %w", context.Canceled), errdefs.Interrupted},
		{"deadline", context.DeadlineExceeded, errdefs.Failed},
		{"cancelled and told", errdefs.Wrap(errdefs.Busy, "x", context.Canceled), errdefs.Busy},
	} {
		if got := errdefs.KindOf(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
		if errdefs.Is(c.err, c.want) != (c.err != nil) {
			t.Errorf("%s: Is disagrees", c.name)
		}
	}
	if errdefs.Is(nil, errdefs.Failed) {
		t.Error("no error is a failed one")
	}
}

func TestText(t *testing.T) {
	cause := errors.New("cause")
	for _, c := range []struct {
		err  errdefs.Error
		want string
	}{
		{errdefs.Error{What: "boot a", Why: "it runs"}, "boot a: it runs"},
		{errdefs.Error{What: "boot a", Err: cause}, "boot a: cause"},
		{errdefs.Error{What: "boot a", Why: "why", Err: cause, Hint: "hint"}, "boot a: why: cause"},
		{errdefs.Error{Err: cause}, "cause"},
		{errdefs.Error{What: "boot a"}, "boot a"},
		{*errdefs.New(errdefs.Usage, "100 %d", "no %s", "%v"), "100 %d: no %v"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if !errors.Is(errdefs.Wrap(errdefs.Busy, "x", cause), cause) {
		t.Error("the cause is lost")
	}
}

func TestHints(t *testing.T) {
	plain := errors.New("plain")
	e := errdefs.New(errdefs.Busy, "x", "y")
	hinted := e.WithHint("zone halt %s", "a")
	if e.Hint != "" || hinted.Hint != "zone halt a" {
		t.Errorf("%q, %q", e.Hint, hinted.Hint)
	}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"nil", nil, ""},
		{"plain", plain, ""},
		{"none", e, ""},
		{"itself", hinted, "zone halt a"},
		{"wrapped", fmt.Errorf("x: %w", hinted), "zone halt a"},
		{"below another", errdefs.Wrap(errdefs.Failed, "z", fmt.Errorf("x: %w", hinted)), "zone halt a"},
		{"the outer first", errdefs.Wrap(errdefs.Failed, "z", hinted).WithHint("outer"), "outer"},
		{"joined", errors.Join(plain, hinted), "zone halt a"},
		{"joined behind one without", errors.Join(e, hinted), "zone halt a"},
		{"deep in a join", errdefs.Wrap(errdefs.Failed, "z", errors.Join(plain, e, fmt.Errorf("x: %w", hinted))), "zone halt a"},
	} {
		if got := errdefs.HintOf(c.err); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
