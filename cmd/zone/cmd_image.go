package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zone/internal/errdefs"
	"zone/internal/image"
	"zone/internal/storage"
	"zone/internal/ui"
)

func newImageCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "image",
		Short: "Build, look at and delete the images that zones are made from",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(imageBuildCommand(a), imageListCommand(a), imageShowCommand(a), imageDeleteCommand(a))
	return c
}

// imageService is what these commands need of the service of zones.
type imageService interface {
	Pool(ctx context.Context, name string) (storage.Pool, error)
	Images(p storage.Pool) *image.Store
	ImageUsers(p storage.Pool, ref string) ([]string, error)
	LockImages(ctx context.Context, p storage.Pool) (release func(), err error)
	FillFromZone(name string) func(ctx context.Context, dir string) error
}

// imageHost is the service with the pool that --pool names, "" for the
// default, and the names of all pools.
type imageHost struct {
	imageService
	pool  string
	pools []string
}

func (a *app) images(ctx context.Context, pool string) (imageHost, error) {
	s, err := a.zones(ctx)
	if err != nil {
		return imageHost{}, err
	}
	names, err := s.Pools.Names()
	return imageHost{s, pool, names}, err
}

// store opens one pool's images, and removes what killed commands left there.
func (h imageHost) store(ctx context.Context, a *app, pool string) (*image.Store, error) {
	p, err := h.Pool(ctx, pool)
	if err != nil {
		return nil, err
	}
	s := h.Images(p)
	removed, err := s.Clean(ctx)
	for _, r := range removed {
		a.note("removed from pool %s: %s", p.Info().Name, r)
	}
	return s, err
}

// existing opens the images of the chosen pool to look one up. Unlike store
// it makes no pool on a host that has none.
func (h imageHost) existing(ctx context.Context, a *app, ref string) (*image.Store, error) {
	if len(h.pools) > 0 || h.pool != "" {
		return h.store(ctx, a, h.pool)
	}
	if _, _, err := image.ParseRef(ref); err != nil {
		return nil, err
	}
	return nil, errdefs.New(errdefs.NotFound, "image "+ref, "no such image; there is none yet").
		WithHint("zone image build NAME --from debian:bookworm")
}

func poolFlag(c *cobra.Command, pool *string) {
	c.Flags().StringVar(pool, "pool", "", "the pool (default: the one called tank, or the only one)")
}

func imageBuildCommand(a *app) *cobra.Command {
	var from, pool string
	spec := image.BuildSpec{}
	c := &cobra.Command{
		Use:   "build NAME --from debian:SUITE|tar:FILE|zone:ZONE",
		Short: "Build the next version of an image",
		Long: "Build the next version of an image. Versions never change: zones made from an older one keep it.\n" +
			"  debian:SUITE  a minimal Debian with the packages of --include, fetched and verified by mmdebstrap\n" +
			"  tar:FILE      an archive, compressed or not, of a root file system\n" +
			"  zone:ZONE     a copy of a zone",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			spec.Name = args[0]
			if err := completeBuild(&spec, from); err != nil {
				return err
			}
			h, err := a.images(cmd.Context(), pool)
			if err != nil {
				return err
			}
			return imageBuild(cmd.Context(), a, h, spec)
		},
	}
	f := c.Flags()
	f.StringVar(&from, "from", "", "where the image comes from; required")
	f.StringSliceVar(&spec.Include, "include", nil, "packages to add, separated by commas (debian)")
	f.StringVar(&spec.Mirror, "mirror", "", "address of the Debian mirror (default: the one this host uses)")
	f.BoolVar(&spec.SuiteOnly, "suite-only", false, "leave out updates and security fixes, so that they are pending (debian)")
	poolFlag(c, &pool)
	return c
}

// completeBuild reads --from and finds mistakes before anything is touched.
func completeBuild(spec *image.BuildSpec, from string) error {
	if from == "" {
		return errdefs.New(errdefs.Usage, "zone image build", "--from is missing; allowed: debian:SUITE, tar:FILE, zone:ZONE").
			WithHint("zone image build %s --from debian:bookworm", spec.Name)
	}
	source, err := image.ParseSource(from)
	if err != nil {
		return err
	}
	spec.Source = source
	return spec.Check()
}

func imageBuild(ctx context.Context, a *app, h imageHost, spec image.BuildSpec) error {
	store, err := h.store(ctx, a, h.pool)
	if err != nil {
		return err
	}
	if spec.Source.Kind == image.SourceZone {
		spec.Fill = h.FillFromZone(spec.Source.Arg)
	}
	start, progress := time.Now(), a.progress()
	img, err := store.Build(ctx, spec, func(line string) {
		progress.Status("image %s: %s", spec.Name, line)
	})
	progress.Done()
	if err != nil {
		return err
	}
	if a.format == ui.FormatTable || a.format == "" {
		a.note("image %s: %s, %d packages, %s, built in %.1f s", img.Ref(), osName(img), img.Packages, ui.Bytes(img.Size), time.Since(start).Seconds())
		_, err = fmt.Fprintln(a.stdout, img.Ref())
		return err
	}
	return ui.Object(a.stdout, a.format, img)
}

// imageRow is an image as list prints it.
type imageRow struct {
	image.Image
	Pool string `json:"pool"`
}

func imageListCommand(a *app) *cobra.Command {
	opt := ui.ListOptions{Key: "images"}
	var pool string
	c := &cobra.Command{
		Use:   "list",
		Short: "List images, the newest version of each first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := a.images(cmd.Context(), pool)
			if err != nil {
				return err
			}
			opt.Format = a.format
			return imageList(cmd.Context(), a, h, opt)
		},
	}
	f := c.Flags()
	f.BoolVarP(&opt.Quiet, "quiet", "q", false, "names with versions only")
	f.StringSliceVar(&opt.Columns, "columns", nil, "columns to show")
	f.StringVar(&pool, "pool", "", "only the images of this pool")
	return c
}

func imageList(ctx context.Context, a *app, h imageHost, opt ui.ListOptions) error {
	pools := h.pools
	if h.pool != "" {
		pools = []string{h.pool}
	}
	var rows []imageRow
	var damaged error
	for _, name := range pools {
		store, err := h.store(ctx, a, name)
		if err != nil {
			return err
		}
		images, err := store.List(ctx)
		if err != nil {
			damaged = err
		}
		for _, img := range images {
			rows = append(rows, imageRow{img, name})
		}
	}
	if err := ui.List(a.stdout, opt, imageColumns(len(h.pools) > 1), rows); err != nil {
		return err
	}
	return damaged
}

func imageColumns(severalPools bool) []ui.Column[imageRow] {
	return []ui.Column[imageRow]{
		// First, so that -q prints what other commands take.
		{Name: "image", Hidden: true, Value: func(r imageRow) string { return r.Ref() }},
		{Name: "name", Value: func(r imageRow) string { return r.Name }},
		{Name: "version", Right: true, Value: func(r imageRow) string { return strconv.Itoa(r.Version) }},
		{Name: "pool", Hidden: !severalPools, Value: func(r imageRow) string { return r.Pool }},
		{Name: "os", Value: func(r imageRow) string { return osName(r.Image) }},
		{Name: "packages", Right: true, Value: func(r imageRow) string { return packageCount(r.Image) }},
		{Name: "size", Right: true, Value: func(r imageRow) string { return ui.Bytes(r.Size) }},
		{Name: "init", Value: func(r imageRow) string { return r.Init }},
		{Name: "created", Value: func(r imageRow) string { return r.Created.Format(time.DateTime) }},
		{Name: "arch", Hidden: true, Value: func(r imageRow) string { return r.Arch }},
		{Name: "source", Hidden: true, Value: func(r imageRow) string { return r.Source }},
		{Name: "uuid", Hidden: true, Value: func(r imageRow) string { return r.UUID }},
	}
}

func osName(img image.Image) string {
	if img.OS.PrettyName != "" {
		return img.OS.PrettyName
	}
	return strings.TrimSpace(img.OS.ID + " " + img.OS.VersionID)
}

// packageCount is "" where the packages could not be counted.
func packageCount(img image.Image) string {
	if img.Packages == 0 {
		return ""
	}
	return strconv.Itoa(img.Packages)
}

// imageDetails is an image as show prints it.
type imageDetails struct {
	image.Image
	Pool   string   `json:"pool"`
	UsedBy []string `json:"used_by"`
}

func imageShowCommand(a *app) *cobra.Command {
	var pool string
	c := &cobra.Command{
		Use:   "show NAME[@VERSION]",
		Short: "Show one image: the newest version, or the one given",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.images(cmd.Context(), pool)
			if err != nil {
				return err
			}
			return imageShow(cmd.Context(), a, h, args[0])
		},
	}
	poolFlag(c, &pool)
	return c
}

func imageShow(ctx context.Context, a *app, h imageHost, ref string) error {
	store, err := h.existing(ctx, a, ref)
	if err != nil {
		return err
	}
	img, err := store.Get(ctx, ref)
	if err != nil {
		return err
	}
	users, err := h.ImageUsers(store.Pool, img.Ref())
	if err != nil {
		return err
	}
	d := imageDetails{img, store.Pool.Info().Name, users}
	if d.UsedBy == nil {
		d.UsedBy = []string{}
	}
	if a.format == ui.FormatTable || a.format == "" {
		return printImage(a.stdout, d)
	}
	return ui.Object(a.stdout, a.format, d)
}

func printImage(w io.Writer, d imageDetails) error {
	suite := "no"
	if d.SuiteOnly {
		suite = "yes: updates and security fixes are left out"
	}
	packages := packageCount(d.Image)
	if d.PackageSystem != "" {
		packages = strings.TrimSpace(packages + " (" + d.PackageSystem + ")")
	}
	var b strings.Builder
	for _, line := range [][2]string{
		{"image", d.Ref()},
		{"pool", d.Pool},
		{"uuid", d.UUID},
		{"source", d.Source},
		{"suite only", suite},
		{"created", d.Created.Format(time.RFC3339)},
		{"os", osName(d.Image)},
		{"codename", d.OS.Codename},
		{"arch", d.Arch},
		{"packages", packages},
		{"size", ui.Bytes(d.Size)},
		{"init", d.Init},
		{"used by", strings.Join(d.UsedBy, ", ")},
	} {
		if line[1] == "" {
			line[1] = "-"
		}
		fmt.Fprintf(&b, "%-11s %s\n", line[0]+":", ui.Printable(line[1]))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func imageDeleteCommand(a *app) *cobra.Command {
	var force, dryRun bool
	var pool string
	c := &cobra.Command{
		Use:   "delete NAME[@VERSION]",
		Short: "Delete an image that no zone uses",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := a.images(cmd.Context(), pool)
			if err != nil {
				return err
			}
			return imageDelete(cmd.Context(), a, h, args[0], force, dryRun)
		},
	}
	f := c.Flags()
	f.BoolVarP(&force, "force", "F", false, "do not ask")
	f.BoolVar(&dryRun, "dry-run", false, "say what would be deleted")
	poolFlag(c, &pool)
	return c
}

func imageDelete(ctx context.Context, a *app, h imageHost, ref string, force, dryRun bool) error {
	store, err := h.existing(ctx, a, ref)
	if err != nil {
		return err
	}
	inUse := func(_ context.Context, img image.Image) ([]string, error) {
		return h.ImageUsers(store.Pool, img.Ref())
	}
	img, err := store.Deletable(ctx, ref, inUse)
	if err != nil {
		return err
	}
	if dryRun {
		_, err := fmt.Fprintf(a.stdout, "would delete image %s (%s)\n", img.Ref(), ui.Bytes(img.Size))
		return err
	}
	if err := a.confirm(ctx, force, "delete image "+img.Ref()); err != nil {
		return err
	}
	release, err := h.LockImages(ctx, store.Pool)
	if err != nil {
		return err
	}
	defer release()
	return store.Delete(ctx, img.Ref(), inUse)
}
