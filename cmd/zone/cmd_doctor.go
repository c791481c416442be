package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"zone/internal/errdefs"
	"zone/internal/host/probe"
	"zone/internal/ui"
)

func newDoctorCommand(a *app) *cobra.Command {
	var opt ui.ListOptions
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Tell what this host offers to zones, what is missing and how to get it",
		Long: "Tell what this host offers to zones, what is missing and how to get it.\n\n" +
			"Features are tried, not guessed, and nothing that was tried stays. The exit code is 13 when\n" +
			"something is missing without which no zone boots.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := probe.Run(cmd.Context(), probe.Options{Root: "/", Dir: a.home, Runner: a.runner})
			if err := cmd.Context().Err(); err != nil {
				return err // what was found after a signal is not the host's answer
			}
			opt.Format, opt.Key = a.format, "features"
			if err := ui.List(a.stdout, opt, doctorColumns(), checks); err != nil {
				return err
			}
			return missingFeatures(checks)
		},
	}
	c.Flags().StringSliceVar(&opt.Columns, "columns", nil, "the columns to show: "+columnNames(doctorColumns()))
	c.Flags().BoolVarP(&opt.Quiet, "quiet", "q", false, "names only")
	return c
}

func doctorColumns() []ui.Column[probe.Check] {
	return []ui.Column[probe.Check]{
		{Name: "feature", Value: func(c probe.Check) string { return c.Name }},
		{Name: "status", Value: func(c probe.Check) string { return string(c.Status) }},
		{Name: "detail", Value: func(c probe.Check) string { return c.Detail }},
		{Name: "fix", Value: func(c probe.Check) string { return c.Fix }},
		{Name: "needed", Value: func(c probe.Check) string { return c.Needed }, Hidden: true},
		{Name: "required", Value: func(c probe.Check) string { return fmt.Sprint(c.Required) }, Hidden: true},
	}
}

// missingFeatures is an error that names every missing feature without which
// no zone boots.
func missingFeatures(checks []probe.Check) error {
	var names []string
	hint := ""
	for _, c := range checks {
		if !c.Required || c.Status != probe.Missing {
			continue
		}
		names = append(names, fmt.Sprintf("%s (%s)", c.Name, c.Needed))
		if hint == "" {
			hint = c.Fix
		}
	}
	if names == nil {
		return nil
	}
	return errdefs.New(errdefs.NotSupported, "this host cannot run zones", "missing: %s", strings.Join(names, ", ")).
		WithHint("%s", hint)
}
