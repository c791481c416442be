// Command zone runs isolated systems on a Linux host, measures them against
// their limits, patches them all at once and rolls back the bad patch.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"zone/internal/host"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second signal ends the program where it stands.
	context.AfterFunc(ctx, stop)
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, runner: host.Exec{}}
	code := a.main(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}
