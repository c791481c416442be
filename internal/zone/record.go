package zone

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"zone/internal/config"
	"zone/internal/errdefs"
	"zone/internal/host"
)

// The two kinds of root.
const (
	Sparse = "sparse" // an overlay: the image and layers below, the zone's own files above
	Whole  = "whole"  // a copy-on-write copy of its own
)

// Record is what a zone is, kept in zone.json inside its dataset. It travels
// with every snapshot and stream of the zone.
type Record struct {
	Schema    int        `json:"schema"`
	Name      string     `json:"name"`
	UUID      string     `json:"uuid"`
	Root      string     `json:"root"`   // sparse or whole
	Image     string     `json:"image"`  // NAME@VERSION
	Layers    []string   `json:"layers"` // above the image, topmost first
	Address   netip.Addr `json:"address"`
	Created   time.Time  `json:"created"`
	ClonedOf  string     `json:"cloned_of,omitempty"`
	Rewritten string     `json:"rewritten,omitempty"` // operation that last replaced the root
	BE        *bootEnv   `json:"be,omitempty"`        // nil for the root the zone was made with
	Next      string     `json:"next_be,omitempty"`   // boot environment to be active from the next boot
	Taken     *time.Time `json:"taken,omitempty"`     // of a snapshot that was moved: when it was taken
}

const (
	recordFile = "zone.json"
	configFile = "zone.toml"
)

func readRecord(dir string) (Record, error) {
	var r Record
	if err := host.ReadJSON(filepath.Join(dir, recordFile), &r); err != nil {
		return r, err
	}
	if r.Schema != 1 {
		return r, fmt.Errorf("%s: schema %d is not known to this version", filepath.Join(dir, recordFile), r.Schema)
	}
	return r, nil
}

func writeRecord(dir string, r Record) error {
	r.Schema = 1
	return host.WriteJSON(filepath.Join(dir, recordFile), r, false)
}

func readConfig(dir string) (config.Zone, error) {
	file := filepath.Join(dir, configFile)
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return config.Zone{}, errdefs.Wrap(errdefs.WrongState, "read configuration", err)
	}
	if err != nil {
		return config.Zone{}, err
	}
	return config.Parse(file, data)
}

func writeConfig(dir string, z config.Zone) error {
	return host.WriteFile(filepath.Join(dir, configFile), config.Render(z), 0o600, false)
}

// newID returns a short random name for unfinished work and layers.
func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
