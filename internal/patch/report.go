package patch

import (
	"runtime"
	"time"

	"zone/internal/errdefs"
	"zone/internal/patch/packages"
)

// The states of a run.
const (
	StateRunning     = "running"
	StateFinished    = "finished"
	StateInterrupted = "interrupted"
)

// The results of a zone.
const (
	Patched    = "patched"
	UpToDate   = "up-to-date"
	Pending    = "pending" // a dry run: what would be done
	RolledBack = "rolled-back"
	Skipped    = "skipped" // left as it was, for the reason given
	FailedZone = "failed"  // neither patched nor rolled back: the reason says what to do
)

// Report is what a run did. Seconds are wall time unless they say otherwise.
type Report struct {
	Schema  int       `json:"schema"`
	Run     string    `json:"run"`
	State   string    `json:"state"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Request Request   `json:"request"`
	CPUs    int       `json:"cpus"`

	Packages     int   `json:"packages"` // package upgrades in all patched zones
	BytesFetched int64 `json:"bytes_fetched"`

	Wall   float64 `json:"wall_seconds"`
	CPU    float64 `json:"cpu_seconds"`    // all zones' and the tool's own
	Shared float64 `json:"shared_seconds"` // refresh and fetch, done once for all
	// Sequential estimates the run with one zone after another.
	Sequential float64 `json:"sequential_seconds"`
	SpeedUp    float64 `json:"speed_up"`
	Method     string  `json:"sequential_method"`

	RolledBack []string      `json:"rolled_back"`
	Counts     Counts        `json:"counts"`
	Zones      []*ZoneReport `json:"zones"`
}

// Counts says how many zones ended how.
type Counts struct {
	Patched    int `json:"patched"`
	UpToDate   int `json:"up_to_date"`
	Pending    int `json:"pending"`
	RolledBack int `json:"rolled_back"`
	Skipped    int `json:"skipped"`
	Failed     int `json:"failed"`
}

// ZoneReport is what became of one zone, and while the run goes on its record
// in the journal.
type ZoneReport struct {
	Zone     string `json:"zone"`
	Phase    string `json:"phase"`
	Strategy string `json:"strategy,omitempty"`
	State    string `json:"state,omitempty"` // before the run
	Result   string `json:"result,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Output is the end of what was said before it failed.
	Output   []string          `json:"output,omitempty"`
	Packages []packages.Change `json:"packages"`
	KeptBack []string          `json:"kept_back,omitempty"`
	// Download is the size of the zone's package files, fetched for it or not.
	Download int64 `json:"download_bytes"`

	Wall     float64 `json:"wall_seconds"`     // work on this zone, shared phases apart
	CPU      float64 `json:"cpu_seconds"`      // of its cgroup meanwhile, its services included
	Waited   float64 `json:"waited_seconds"`   // for CPUs that others used
	Downtime float64 `json:"downtime_seconds"` // ran before and did not run
	// WaitKnown is false when the host does not tell how long a zone waited.
	WaitKnown bool `json:"waited_known"`

	Health   string `json:"health,omitempty"`        // ok, or why it was not checked
	Snapshot string `json:"snapshot,omitempty"`      // of the zone before
	Kept     string `json:"kept_snapshot,omitempty"` // of the zone as it was when rolled back

	// WasRunning and BootAgain say how to leave the zone after a crash.
	WasRunning bool `json:"was_running"`
	BootAgain  bool `json:"boot_again,omitempty"`
}

// done says whether nothing is left to do for the zone.
func (z *ZoneReport) done() bool { return z.Result == Patched || z.Result == UpToDate }

const (
	methodKnown = "sum over zones of (its wall time - the time it waited for CPUs that others used: " +
		"its cgroup's CPU pressure less its own throttling), but never less than its CPU time nor more than its wall time; " +
		"plus the phases that were shared; an estimate from this run, no second run was made"
	methodUnknown = "sum over zones of its CPU time, at most its wall time, because this host does not tell how long a zone " +
		"waited for CPUs (no CPU pressure); plus the phases that were shared; a low estimate from this run, no second run was made"
)

// sum fills in what follows from the zones, the wall and shared times and the
// tool's own CPU time.
func (rep *Report) sum(own float64) {
	rep.CPUs = runtime.NumCPU()
	rep.CPU, rep.Sequential, rep.Method = own, rep.Shared, methodKnown
	rep.RolledBack, rep.Counts, rep.Packages = []string{}, Counts{}, 0
	for _, z := range rep.Zones {
		rep.CPU += z.CPU
		rep.Sequential += z.alone()
		if !z.WaitKnown && z.Wall > 0 {
			rep.Method = methodUnknown
		}
		switch z.Result {
		case Patched:
			rep.Counts.Patched++
			rep.Packages += len(z.Packages)
		case UpToDate:
			rep.Counts.UpToDate++
		case Pending:
			rep.Counts.Pending++
			rep.Packages += len(z.Packages)
		case RolledBack:
			rep.Counts.RolledBack++
			rep.RolledBack = append(rep.RolledBack, z.Zone)
		case Skipped:
			rep.Counts.Skipped++
		default:
			rep.Counts.Failed++
		}
	}
	if rep.Wall > 0 {
		rep.SpeedUp = rep.Sequential / rep.Wall
	}
}

// alone estimates the zone's wall time had it been the only one at work.
func (z *ZoneReport) alone() float64 {
	if !z.WaitKnown {
		return min(z.CPU, z.Wall)
	}
	return min(max(z.Wall-z.Waited, z.CPU), z.Wall)
}

// Err turns the result into the error of the command, nil when all zones are
// up to date.
func (rep *Report) Err(interrupted bool) error {
	c := rep.Counts
	bad := c.RolledBack + c.Skipped + c.Failed
	switch {
	case interrupted:
		return errdefs.New(errdefs.Interrupted, "patch", "interrupted; %d zones patched, %d not", c.Patched, bad).
			WithHint("zone patch --resume %s", rep.Run)
	case bad == 0:
		return nil
	}
	kind, why := errdefs.Partial, "%d of %d zones were not patched"
	if bad == len(rep.Zones) {
		kind = errdefs.Failed
		if bad == 1 {
			return errdefs.New(kind, "patch "+rep.Zones[0].Zone, "%s: %s", rep.Zones[0].Result, rep.Zones[0].Reason)
		}
	}
	err := errdefs.New(kind, "patch", why, bad, len(rep.Zones))
	if rep.Request.DryRun {
		return err
	}
	return err.WithHint("zone patch show %s", rep.Run)
}
