package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/storage"
	"zone/internal/ui"
)

func newPoolCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "pool",
		Short: "Make, look at and remove the pools that hold zones and images",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(poolCreateCommand(a), poolListCommand(a), poolStatusCommand(a), poolDestroyCommand(a))
	return c
}

func poolCreateCommand(a *app) *cobra.Command {
	var spec storage.Spec
	var size string
	c := &cobra.Command{
		Use:   "create NAME [DEVICE...]",
		Short: "Make a pool on block devices, on a sparse file, or in a directory",
		Long: "Make a pool. Without devices it lives in a sparse file below the home directory, which grows as it\n" +
			"fills. With --backend dir it is a plain directory.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec.Name = args[0]
			if err := completeSpec(&spec, args[1:], size); err != nil {
				return err
			}
			if err := a.enter(); err != nil {
				return err
			}
			return poolCreate(cmd.Context(), a, spec)
		},
	}
	f := c.Flags()
	f.StringVar(&size, "size", "", "size of the sparse file, such as 20G (default: 80% of the free space, at most 50G)")
	f.BoolVar(&spec.Mirror, "mirror", false, "keep everything on two devices")
	f.StringVar(&spec.Backend, "backend", "btrfs", "btrfs, dir or zfs")
	f.StringVar(&spec.Compression, "compression", "off", "off, zstd or gzip")
	f.StringVar(&spec.Path, "path", "", "the directory, with --backend dir")
	f.BoolVar(&spec.NoQuota, "no-quota", false, "leave simple quotas off, so that kernels before 6.7 can mount the pool")
	f.BoolVarP(&spec.Force, "force", "F", false, "use devices that hold a file system; what is on them is lost")
	return c
}

// completeSpec adds to the flags what needs a look: sizes and paths.
func completeSpec(spec *storage.Spec, devices []string, size string) error {
	if size != "" {
		n, err := config.ParseSize(size)
		if err != nil {
			return err
		}
		if n == 0 {
			return errdefs.New(errdefs.Usage, "--size "+size, "a pool cannot be empty; leave --size out for the default")
		}
		spec.Size = int64(n)
	}
	spec.Devices = nil
	for _, d := range devices {
		abs, err := filepath.Abs(d)
		if err != nil {
			return err
		}
		spec.Devices = append(spec.Devices, abs)
	}
	if spec.Path == "" {
		return nil
	}
	var err error
	spec.Path, err = filepath.Abs(spec.Path)
	return err
}

func poolCreate(ctx context.Context, a *app, spec storage.Spec) error {
	pool, err := a.pools().Create(ctx, spec)
	if err != nil {
		return err
	}
	info := pool.Info()
	a.note("pool %s made on %s", info.Name, poolPlace(info))
	if info.Can.Quota {
		a.note("it counts space by simple quotas: kernels before 6.7 cannot mount it (--no-quota leaves them out)")
	}
	if info.File != "" && !info.DirectIO {
		a.note("warning: its file system has no direct I/O, so what is read takes memory twice")
	}
	return nil
}

// poolRow is a pool as list and status print it. Space is 0 when the pool is
// not ready.
type poolRow struct {
	storage.Info
	Size     int64    `json:"size"`
	Used     int64    `json:"used"`
	Free     int64    `json:"free"`
	HostUsed int64    `json:"host_used,omitempty"` // what its file takes on the host's disk
	Zones    []string `json:"zones"`
	Images   []string `json:"images"`
}

func poolColumns() []ui.Column[poolRow] {
	return []ui.Column[poolRow]{
		{Name: "name", Value: func(r poolRow) string { return r.Name }},
		{Name: "state", Value: func(r poolRow) string { return r.State }},
		{Name: "backend", Value: func(r poolRow) string { return r.Backend }},
		{Name: "size", Right: true, Value: func(r poolRow) string { return poolSize(r, r.Size) }},
		{Name: "used", Right: true, Value: func(r poolRow) string { return poolSize(r, r.Used) }},
		{Name: "free", Right: true, Value: func(r poolRow) string { return poolSize(r, r.Free) }},
		{Name: "zones", Right: true, Value: func(r poolRow) string { return fmt.Sprint(len(r.Zones)) }},
		{Name: "images", Right: true, Value: func(r poolRow) string { return fmt.Sprint(len(r.Images)) }},
		{Name: "compression", Hidden: true, Value: func(r poolRow) string { return r.Compression }},
		{Name: "mirror", Hidden: true, Value: func(r poolRow) string { return fmt.Sprint(r.Mirror) }},
		{Name: "on", Hidden: true, Value: func(r poolRow) string { return poolPlace(r.Info) }},
		{Name: "uuid", Hidden: true, Value: func(r poolRow) string { return r.UUID }},
	}
}

func poolSize(r poolRow, n int64) string {
	if r.State != storage.Ready {
		return ""
	}
	return ui.Bytes(n)
}

func poolListCommand(a *app) *cobra.Command {
	opt := ui.ListOptions{Key: "pools"}
	c := &cobra.Command{
		Use:   "list",
		Short: "List the pools",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.enter(); err != nil {
				return err
			}
			rows, err := poolRows(cmd.Context(), a)
			if err != nil {
				return err
			}
			opt.Format = a.format
			return ui.List(a.stdout, opt, poolColumns(), rows)
		},
	}
	c.Flags().BoolVarP(&opt.Quiet, "quiet", "q", false, "names only")
	c.Flags().StringSliceVar(&opt.Columns, "columns", nil, "the columns to show: "+columnNames(poolColumns()))
	return c
}

func columnNames[T any](columns []ui.Column[T]) string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return strings.Join(names, ",")
}

func poolRows(ctx context.Context, a *app) ([]poolRow, error) {
	infos, err := a.pools().List(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([]poolRow, len(infos))
	for i, info := range infos {
		if rows[i], err = poolDetails(ctx, a, info); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

func poolDetails(ctx context.Context, a *app, info storage.Info) (poolRow, error) {
	row := poolRow{Info: info, Zones: []string{}, Images: []string{}}
	if info.State != storage.Ready {
		return row, nil
	}
	pool, err := a.pools().Open(ctx, info.Name)
	if err != nil {
		return row, err
	}
	space, err := pool.Space(ctx)
	if err != nil {
		return row, err
	}
	row.Size, row.Used, row.Free = space.Size, space.Used, space.Free
	if st, err := os.Stat(info.File); info.File != "" && err == nil {
		row.HostUsed = st.Sys().(*syscall.Stat_t).Blocks * 512
	}
	if row.Zones, err = entries(pool.Path("zones")); err != nil {
		return row, err
	}
	row.Images, err = entries(pool.Path("images"))
	return row, err
}

// entries returns the names in a directory; one that is missing is empty.
func entries(dir string) ([]string, error) {
	found, err := os.ReadDir(dir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	names := make([]string, len(found))
	for i, e := range found {
		names[i] = e.Name()
	}
	return names, nil
}

func poolStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "status [NAME]",
		Short:             "Show all there is to know of one pool or of all",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completePools(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.enter(); err != nil {
				return err
			}
			return poolStatus(cmd.Context(), a, args)
		},
	}
}

// poolStatus shows the pool args[0], or all.
func poolStatus(ctx context.Context, a *app, args []string) error {
	rows, err := poolRows(ctx, a)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		row, err := findPool(ctx, a, "status of pool "+args[0], rows, args[0])
		if err != nil {
			return err
		}
		rows = []poolRow{row}
	}
	if a.format != ui.FormatTable && a.format != "" {
		return ui.List(a.stdout, ui.ListOptions{Format: a.format, Key: "pools"}, poolColumns(), rows)
	}
	return printPools(a, rows)
}

// findPool returns the row of one pool, in whatever state it is.
func findPool(ctx context.Context, a *app, what string, rows []poolRow, name string) (poolRow, error) {
	for _, r := range rows {
		if r.Name == name {
			return r, nil
		}
	}
	_, err := a.pools().Open(ctx, name) // tells what is wrong with the name
	var e *errdefs.Error
	if errors.As(err, &e) {
		about := *e
		about.What = what
		return poolRow{}, &about
	}
	if err == nil { // made since
		err = errdefs.New(errdefs.Busy, what, "another command made it just now")
	}
	return poolRow{}, err
}

func printPools(a *app, rows []poolRow) error {
	for i, r := range rows {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		for _, line := range poolLines(r) {
			if line[1] == "" {
				continue
			}
			if _, err := fmt.Fprintf(a.stdout, "%-12s %s\n", line[0]+":", ui.Printable(line[1])); err != nil {
				return err
			}
		}
	}
	return nil
}

func poolLines(r poolRow) [][2]string {
	lines := [][2]string{{"name", r.Name}, {"state", r.State}, {"problem", r.Problem}, {"backend", r.Backend}, {"on", poolPlace(r.Info)}}
	if r.State == storage.Ready {
		space := fmt.Sprintf("%s, %s used, %s free", ui.Bytes(r.Size), ui.Bytes(r.Used), ui.Bytes(r.Free))
		if r.File != "" {
			space += fmt.Sprintf("; takes %s of the host's disk", ui.Bytes(r.HostUsed))
		}
		lines = append(lines, [2]string{"space", space}, [2]string{"can", poolAbilities(r.Can)},
			[2]string{"zones", strings.Join(r.Zones, " ")}, [2]string{"images", strings.Join(r.Images, " ")})
	}
	redundancy := "none"
	if r.Mirror {
		redundancy = "mirror: everything is on two devices"
	}
	created := ""
	if !r.Created.IsZero() {
		created = r.Created.Format("2006-01-02 15:04:05 MST")
	}
	return append(lines, [2]string{"redundancy", redundancy}, [2]string{"compression", r.Compression},
		[2]string{"uuid", r.UUID}, [2]string{"created", created})
}

func poolAbilities(can storage.Abilities) string {
	var names []string
	for _, c := range []struct {
		has  bool
		name string
	}{
		{can.Clone, "instant clones"},
		{can.Reflink && !can.Clone, "copies that share blocks"},
		{can.Immutable, "read-only datasets"},
		{can.Checksums, "checksums"},
		{can.Quota, "simple quotas"},
	} {
		if c.has {
			names = append(names, c.name)
		}
	}
	if names == nil {
		return "plain copies only"
	}
	return strings.Join(names, ", ")
}

func poolPlace(info storage.Info) string {
	switch {
	case info.File != "" && info.DirectIO:
		return "sparse file " + info.File + ", direct I/O"
	case info.File != "":
		return "sparse file " + info.File
	case len(info.Devices) > 0:
		return strings.Join(info.Devices, " ")
	}
	return info.Path
}

// completePools completes names of pools.
func completePools(a *app) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, _ := a.pools().Names()
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
