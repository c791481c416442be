package main

import (
	"bufio"
	"fmt"
	"strings"

	"zone/internal/errdefs"
	"zone/internal/ui"
)

// confirm asks before something is done that cannot be undone, unless force is
// set. Without a terminal there is nobody to ask, and it refuses.
func (a *app) confirm(force bool, what string) error {
	if force {
		return nil
	}
	if !ui.IsTerminal(a.stdin) {
		return errdefs.New(errdefs.Usage, what, "it cannot be undone, and there is no terminal to ask on").WithHint("add -F")
	}
	fmt.Fprintf(a.stderr, "%s? [y/N] ", what)
	answer, err := bufio.NewReader(a.stdin).ReadString('\n')
	if err != nil || !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "y") {
		return errdefs.New(errdefs.Failed, what, "not confirmed; nothing was changed")
	}
	return nil
}
