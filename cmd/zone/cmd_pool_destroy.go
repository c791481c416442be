package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"zone/internal/errdefs"
	"zone/internal/storage"
)

func poolDestroyCommand(a *app) *cobra.Command {
	var force, dryRun bool
	c := &cobra.Command{
		Use:               "destroy NAME",
		Short:             "Remove a pool and all that is in it",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePools(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.enter(); err != nil {
				return err
			}
			zones := func(ctx context.Context) (zoneStates, error) { return a.zones(ctx) }
			return poolDestroy(cmd.Context(), a, zones, args[0], destroyOptions{force, dryRun})
		},
	}
	c.Flags().BoolVarP(&force, "force", "F", false, "do not ask, and remove a pool that holds zones or images")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	return c
}

// zoneStates tells which zones run.
type zoneStates interface {
	ZoneRunning(ctx context.Context, name string) (bool, error)
}

type destroyOptions struct{ force, dryRun bool }

// poolDestroy removes a pool. zones is called only for a pool with zones.
func poolDestroy(ctx context.Context, a *app, zones func(context.Context) (zoneStates, error), name string, opt destroyOptions) error {
	what := "destroy pool " + name
	rows, err := poolRows(ctx, a)
	if err != nil {
		return err
	}
	row, err := findPool(ctx, a, what, rows, name)
	if err != nil {
		return err
	}
	if err := refuseRunning(ctx, zones, what, row.Zones); err != nil {
		return err
	}
	if opt.dryRun {
		return sayDestroy(a, row)
	}
	if !opt.force {
		if err := refuseFull(what, row); err != nil {
			return err
		}
	}
	if err := a.confirm(ctx, opt.force, what); err != nil {
		return err
	}
	if err := a.pools().Destroy(ctx, name); err != nil {
		return err
	}
	a.note("pool %s removed", name)
	return nil
}

// refuseRunning refuses whatever the flags: a pool must not go from under a
// running zone.
func refuseRunning(ctx context.Context, open func(context.Context) (zoneStates, error), what string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	zones, err := open(ctx)
	if err != nil {
		return err
	}
	var running []string
	for _, n := range names {
		is, err := zones.ZoneRunning(ctx, n)
		if errdefs.Is(err, errdefs.NotFound) {
			continue // a directory that is no zone
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if is {
			running = append(running, n)
		}
	}
	if len(running) == 0 {
		return nil
	}
	return errdefs.New(errdefs.Busy, what, "zones run on it: %s", strings.Join(running, ", ")).
		WithHint("zone halt %s", strings.Join(running, " "))
}

// refuseFull refuses a pool that holds, or may hold, something.
func refuseFull(what string, row poolRow) error {
	var holds []string
	if len(row.Zones) > 0 {
		holds = append(holds, "zones "+strings.Join(row.Zones, ", "))
	}
	if len(row.Images) > 0 {
		holds = append(holds, "images "+strings.Join(row.Images, ", "))
	}
	switch {
	case len(holds) > 0:
		return errdefs.New(errdefs.WrongState, what, "it holds %s", strings.Join(holds, "; ")).
			WithHint("delete them first, or add --force")
	case row.State == storage.Unavailable:
		return errdefs.New(errdefs.WrongState, what, "what it holds cannot be seen: %s", row.Problem).
			WithHint("add --force if it may be lost")
	}
	return nil
}

func sayDestroy(a *app, row poolRow) error {
	_, err := fmt.Fprintf(a.stdout, "would remove pool %s on %s\n", row.Name, poolPlace(row.Info))
	for _, z := range row.Zones {
		fmt.Fprintf(a.stdout, "would remove zone %s\n", z)
	}
	for _, i := range row.Images {
		fmt.Fprintf(a.stdout, "would remove image %s\n", i)
	}
	return err
}
