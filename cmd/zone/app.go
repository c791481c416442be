package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"zone/internal/host"
	"zone/internal/storage"
	"zone/internal/ui"
)

// app is what every command gets: where state lives, how to print, where to.
type app struct {
	home, run string // $ZONE_HOME and $ZONE_RUN, absolute
	format    string // table, json or jsonl
	noColor   bool
	stdin     io.Reader
	stdout    io.Writer
	stderr    io.Writer
	runner    host.Runner
}
