package main

import (
	"context"

	"zone/internal/patch"
	"zone/internal/zone"
)

// maintained gives package patch the zones as it wants them.
type maintained struct {
	zone.Maintenance
}

func patchZones(s *zone.Service) patch.Zones { return maintained{zone.Maintenance{S: s}} }

// CPU reads the counters of a zone's cgroup.
func (m maintained) CPU(ctx context.Context, name string) (patch.CPU, error) {
	used, waited, throttled, has, err := m.Maintenance.CPU(ctx, name)
	return patch.CPU{Used: used, Waited: waited, Throttled: throttled, HasWaited: has}, err
}
