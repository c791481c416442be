package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"zone/internal/errdefs"
	"zone/internal/ui"
)

// confirm asks before something is done that cannot be undone, unless force is
// set. Without a terminal there is nobody to ask, and it refuses.
func (a *app) confirm(ctx context.Context, force bool, what string) error {
	if force {
		return nil
	}
	if !ui.IsTerminal(a.stdin) {
		return errdefs.New(errdefs.Usage, what, "it cannot be undone, and there is no terminal to ask on").WithHint("add -F")
	}
	fmt.Fprintf(a.stderr, "%s? [y/N] ", what)
	answers := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answers <- line
	}()
	var answer string
	select {
	case answer = <-answers:
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return ctx.Err()
	}
	if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "y") {
		return errdefs.New(errdefs.Failed, what, "not confirmed; nothing was changed")
	}
	return nil
}
