package image

import (
	"regexp"
	"strconv"
	"strings"

	"zone/internal/config"
	"zone/internal/errdefs"
)

// The kinds of source.
const (
	SourceDebian = "debian" // Arg is the suite
	SourceTar    = "tar"    // Arg is the file
	SourceZone   = "zone"   // Arg is the zone
)

const allowedSources = "debian:SUITE, tar:FILE, zone:ZONE"

// Source is where an image comes from.
type Source struct {
	Kind string
	Arg  string
}

// String is the source as it is typed.
func (s Source) String() string { return s.Kind + ":" + s.Arg }

var suiteForm = regexp.MustCompile(`^[a-z][a-z0-9.-]*$`)

// ParseSource reads "debian:bookworm", "tar:FILE" or "zone:ZONE". Forms that
// are planned are errdefs.NotSupported, all others errdefs.Usage.
func ParseSource(text string) (Source, error) {
	what := "--from " + strconv.Quote(text)
	kind, arg, given := strings.Cut(text, ":")
	switch kind {
	case SourceDebian, SourceTar, SourceZone:
	case "oci", "registry":
		return Source{}, errdefs.New(errdefs.NotSupported, what, "sources of kind %s come later; allowed now: %s", kind, allowedSources)
	default:
		near := config.Nearest(kind, []string{SourceDebian, SourceTar, SourceZone})
		if near != "" {
			near = ", did you mean " + near + "?"
		}
		return Source{}, errdefs.New(errdefs.Usage, what, "unknown source%s; allowed: %s", near, allowedSources)
	}
	if !given || arg == "" {
		return Source{}, errdefs.New(errdefs.Usage, what, "nothing after %q; allowed: %s", kind+":", allowedSources)
	}
	switch kind {
	case SourceDebian:
		if !suiteForm.MatchString(arg) {
			return Source{}, errdefs.New(errdefs.Usage, what, "%q is no name of a suite; names look like bookworm or sid", arg)
		}
	case SourceZone:
		if err := config.ValidName(arg); err != nil {
			return Source{}, errdefs.Wrap(errdefs.Usage, what, err)
		}
	}
	return Source{Kind: kind, Arg: arg}, nil
}
