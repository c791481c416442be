package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"zone/internal/errdefs"
	"zone/internal/stat"
	"zone/internal/ui"
)

// firstSample is how long the first sample takes: long enough to be true,
// short enough to wait for.
const firstSample = 250 * time.Millisecond

// statStore is where the running zones are found.
type statStore interface {
	StatSources(ctx context.Context) ([]stat.Source, error)
	ZoneRunning(ctx context.Context, name string) (bool, error)
}

// statOptions is what `zone stat` was asked for.
type statOptions struct {
	interval  time.Duration // zero: one report
	count     int           // reports, zero: until interrupted
	zones     []string      // names and globs, nil: all
	parseable bool
	list      ui.ListOptions
}

func newStatCommand(a *app) *cobra.Command {
	var opt statOptions
	c := &cobra.Command{
		Use:   "stat [INTERVAL [COUNT]]",
		Short: "Show what each zone uses, beside its caps and shares",
		Long: "Show what each running zone uses, beside its caps and shares, with rows for the whole host\n" +
			"([total]) and for what no zone owns ([system]). The first report covers a quarter of a second,\n" +
			"each later one the time since the one before. INTERVAL is in seconds, or 500ms, 1m30s.",
		Example: "  zone stat\n  zone stat 5\n  zone stat 1 10 -z 'web*,db1' --format jsonl",
		Args:    cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := opt.parseArgs(args); err != nil {
				return err
			}
			s, err := a.zones(cmd.Context())
			if err != nil {
				return err
			}
			if err := checkStatZones(cmd.Context(), a, s, opt.zones); err != nil {
				return err
			}
			opt.list.Format, opt.list.Key = a.format, "zones"
			return watchStat(cmd.Context(), s, opt, func(rows []stat.Usage, first bool) error {
				return opt.print(a.stdout, rows, first)
			})
		},
	}
	f := c.Flags()
	f.StringSliceVarP(&opt.zones, "zone", "z", nil, "only these zones: names or globs")
	f.BoolVarP(&opt.parseable, "parseable-too", "p", false, "the same as -P")
	_ = f.MarkHidden("parseable-too")
	f.BoolVarP(&opt.parseable, "parseable", "P", false, "colon-separated, raw numbers, the time in seconds first; fields are only ever added")
	f.StringSliceVar(&opt.list.Columns, "columns", nil, "the columns to show: "+columnNames(statColumns()))
	f.BoolVarP(&opt.list.Quiet, "quiet", "q", false, "names only")
	return c
}

func (o *statOptions) parseArgs(args []string) error {
	if len(args) > 0 {
		d, err := parseInterval(args[0])
		if err != nil {
			return err
		}
		o.interval = d
	}
	if len(args) > 1 {
		n, err := strconv.Atoi(args[1])
		if err != nil || n < 1 {
			return errdefs.New(errdefs.Usage, "stat count "+args[1], "must be a whole number from 1 on")
		}
		o.count = n
	}
	for _, z := range o.zones {
		if _, err := path.Match(z, ""); err != nil || z == "" {
			return errdefs.New(errdefs.Usage, fmt.Sprintf("stat -z %q", z), "must be a zone's name or a glob such as web*")
		}
	}
	return nil
}

// parseInterval takes seconds ("5", "0.5") or a Go duration ("1m30s").
func parseInterval(s string) (time.Duration, error) {
	const shortest, longest = 10 * time.Millisecond, 24 * time.Hour
	d, err := time.ParseDuration(s)
	if err != nil {
		d, err = time.ParseDuration(s + "s")
	}
	if err != nil || d < shortest || d > longest {
		return 0, errdefs.New(errdefs.Usage, "stat interval "+s, "must be seconds or a time such as 500ms or 1m30s, from 10ms to 24h")
	}
	return d, nil
}

// checkStatZones refuses names of no zone, and says which zones do not run.
func checkStatZones(ctx context.Context, a *app, s statStore, names []string) error {
	for _, name := range names {
		if strings.ContainsAny(name, `*?[\`) {
			continue
		}
		running, err := s.ZoneRunning(ctx, name)
		if err != nil {
			return err
		}
		if !running {
			a.note("%s is not running", name)
		}
	}
	return nil
}

// watchStat gives a report per interval to print, until the count is reached
// or the context ends, which is a clean end.
func watchStat(ctx context.Context, s statStore, o statOptions, print func(rows []stat.Usage, first bool) error) error {
	sampler := stat.Sampler{Root: "/"}
	read := func() (stat.Sample, error) {
		sources, err := s.StatSources(ctx)
		if err != nil {
			return stat.Sample{}, err
		}
		return sampler.Read(sources)
	}
	prev, err := read()
	next := time.Now().Add(firstSample)
	for n := 1; err == nil && sleepUntil(ctx, next); n++ {
		var cur stat.Sample
		if cur, err = read(); err != nil {
			break
		}
		if err = print(o.keep(stat.Rates(prev, cur)), n == 1); err != nil {
			return err
		}
		if o.interval == 0 || n == o.count {
			return nil
		}
		// By the clock and not by the sleep, so that reports do not drift; after
		// a pause of the whole machine, none is made up for.
		prev, next = cur, next.Add(o.interval)
		if now := time.Now(); next.Before(now) {
			next = now.Add(o.interval)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func sleepUntil(ctx context.Context, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// keep leaves the zones asked for. The rows of the host stay: they are
// reckoned from all zones.
func (o statOptions) keep(rows []stat.Usage) []stat.Usage {
	if o.zones == nil {
		return rows
	}
	kept := slices.Clone(rows[:2]) // [total] and [system]
	for _, r := range rows[2:] {
		if slices.ContainsFunc(o.zones, func(z string) bool { ok, _ := path.Match(z, r.Zone); return ok }) {
			kept = append(kept, r)
		}
	}
	return kept
}

func (o statOptions) print(w io.Writer, rows []stat.Usage, first bool) error {
	if o.parseable {
		return printStatLines(w, rows)
	}
	if !first && !o.list.Quiet && (o.list.Format == ui.FormatTable || o.list.Format == "") {
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	return ui.List(w, o.list, statColumns(), rows)
}

func statColumns() []ui.Column[stat.Usage] {
	type row = stat.Usage
	number := func(name string, hidden bool, value func(row) string) ui.Column[row] {
		return ui.Column[row]{Name: name, Value: value, Right: true, Hidden: hidden}
	}
	return []ui.Column[row]{
		{Name: "zone", Value: func(r row) string { return r.Zone }},
		number("cpu", false, func(r row) string { return fmt.Sprintf("%.2f", r.CPU) }),
		number("cpu-cap", false, func(r row) string { return cpusOrNone(r.CPUCap) }),
		number("cpu%", false, func(r row) string { return percentOrNone(r.CPUPercent) }),
		number("shares", false, func(r row) string { return countOrNone(r.Shares) }),
		number("share%", false, func(r row) string { return percentOrNone(r.SharePercent) }),
		number("throttled%", false, func(r row) string { return percentOrNone(r.Throttled) }),
		number("mem", false, func(r row) string { return ui.Bytes(r.Memory) }),
		number("mem-cap", false, func(r row) string { return bytesOrNone(r.MemoryCap) }),
		number("mem%", false, func(r row) string { return percentOrNone(r.MemoryPercent) }),
		number("swap", false, func(r row) string { return ui.Bytes(r.Swap) }),
		number("swap-cap", false, func(r row) string { return bytesOrNone(r.SwapCap) }),
		number("swap%", true, func(r row) string { return percentOrNone(r.SwapPercent) }),
		number("pids", false, func(r row) string { return fmt.Sprint(r.Pids) }),
		number("pids-cap", false, func(r row) string { return countOrNone(r.PidsCap) }),
		number("pids%", true, func(r row) string { return percentOrNone(r.PidsPercent) }),
	}
}

func cpusOrNone(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(math.Round(*v*100)/100, 'f', -1, 64)
}

func percentOrNone(v *float64) string {
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%.1f", *v)
}

func countOrNone(v *int64) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

func bytesOrNone(v *int64) string {
	if v == nil {
		return ""
	}
	return ui.Bytes(*v)
}

// printStatLines prints a row a line: time, zone, then numbers without units;
// what is not set is empty.
func printStatLines(w io.Writer, rows []stat.Usage) error {
	float := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', 4, 64)
	}
	var b strings.Builder
	for _, r := range rows {
		fields := []string{
			strconv.FormatInt(r.Time.Unix(), 10), strings.ReplaceAll(ui.Printable(r.Zone), ":", `\:`),
			float(&r.CPU), float(r.CPUCap), float(r.CPUPercent), countOrNone(r.Shares), float(r.SharePercent), float(r.Throttled),
			fmt.Sprint(r.Memory), countOrNone(r.MemoryCap), float(r.MemoryPercent),
			fmt.Sprint(r.Swap), countOrNone(r.SwapCap), float(r.SwapPercent),
			fmt.Sprint(r.Pids), countOrNone(r.PidsCap), float(r.PidsPercent),
		}
		b.WriteString(strings.Join(fields, ":") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
