package image

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
)

var packageForm = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?([=/][A-Za-z0-9.+:~-]+)?$`)

const sourcesList = "/etc/apt/sources.list"

// bootstrapDebian fills root with a minimal Debian: apt, the essential
// packages and those asked for.
func (s *Store) bootstrapDebian(ctx context.Context, spec BuildSpec, root, scratch string, progress func(string)) error {
	if _, err := host.LookPath("mmdebstrap"); err != nil {
		return errdefs.New(errdefs.NotSupported, "build from "+spec.Source.String(), "this host has no mmdebstrap").
			WithHint("apt-get install mmdebstrap")
	}
	suite := spec.Source.Arg
	m, err := s.findMirrors(ctx, suite, spec.Mirror)
	if err != nil {
		return err
	}
	progress("packages from " + m.Main)
	_, err = runTool(ctx, s.Runner, host.Cmd{
		Name: "mmdebstrap",
		Args: mmdebstrapArgs(spec, m, root),
		// Its temporary files go where the undo finds them.
		Env:    []string{"TMPDIR=" + scratch},
		Stderr: &lineWriter{line: bootstrapProgress(progress)},
	})
	if err != nil {
		return suggestSuite(suite, err)
	}
	return writeSources(root, suite, m)
}

func (s *Store) findMirrors(ctx context.Context, suite, mirror string) (mirrors, error) {
	var known []target
	res, err := s.Runner.Run(ctx, host.Cmd{
		Name: "apt-get", Args: []string{"indextargets", "--format", targetFormat, "Created-By: Packages"},
	})
	if err == nil {
		known = parseTargets(res.Stdout)
	} else if ctx.Err() != nil {
		return mirrors{}, ctx.Err()
	}
	// A host without apt has no mirrors of its own: --mirror tells.
	return chooseMirrors(suite, mirror, known, os.ReadFile)
}

func mmdebstrapArgs(spec BuildSpec, m mirrors, root string) []string {
	args := []string{"--mode=root", "--variant=minbase", "--format=directory"}
	include := spec.Include
	if strings.HasPrefix(m.Main, "https:") || strings.HasPrefix(m.Security, "https:") {
		include = append([]string{"ca-certificates"}, include...) // or apt in the zone cannot reach its mirror
	}
	if len(include) > 0 {
		args = append(args, "--include="+strings.Join(include, ","))
	}
	args = append(args, spec.Source.Arg, root)
	return append(args, sourcesLines(spec.Source.Arg, m, spec.SuiteOnly, "")...)
}

// bootstrapProgress keeps what mmdebstrap tells a person: "I: installing …".
func bootstrapProgress(progress func(string)) func(string) {
	return func(line string) {
		text, ok := strings.CutPrefix(line, "I: ")
		if ok && !strings.HasPrefix(text, "main() ") { // its own inner workings
			progress(strings.TrimSuffix(text, "..."))
		}
	}
}

// writeSources lists all sources of the suite, also when the image was built
// from the bare suite: what it lacks is then pending.
func writeSources(root, suite string, m mirrors) error {
	r, err := host.OpenRoot(root)
	if err != nil {
		return err
	}
	defer r.Close()
	old, err := r.ReadFile(sourcesList)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := strings.Join(sourcesLines(suite, m, false, sourceOptions(string(old))), "\n") + "\n"
	return r.WriteFile(sourcesList, []byte(text), 0o644)
}

// sourceOptions returns the bracketed options of the first deb line: where
// the host's keys alone are not enough, mmdebstrap names the keyring there.
func sourceOptions(list string) string {
	for line := range strings.Lines(list) {
		rest, ok := strings.CutPrefix(line, "deb [")
		if !ok {
			continue
		}
		if options, _, closed := strings.Cut(rest, "]"); closed {
			return "[" + options + "]"
		}
	}
	return ""
}

// suggestSuite adds the nearest known suite to the error when the suite is
// not a known one; unknown suites are tried all the same.
func suggestSuite(suite string, err error) error {
	known := []string{
		"bullseye", "bookworm", "trixie", "forky", "sid",
		"oldoldstable", "oldstable", "stable", "testing", "unstable",
	}
	near := config.Nearest(suite, known)
	if near == "" || near == suite {
		return err
	}
	return errdefs.Wrap(errdefs.KindOf(err), "suite "+strconv.Quote(suite), err).
		WithHint("did you mean debian:%s?", near)
}

func checkPackages(names []string) error {
	for _, n := range names {
		if !packageForm.MatchString(n) {
			return errdefs.New(errdefs.Usage, "--include "+strconv.Quote(n), "no name of a package; names look like nginx or libc6:amd64")
		}
	}
	return nil
}
