package zone

import (
	"context"
	"os"

	"zone/internal/host"
	"zone/internal/storage"
)

// copyRoot copies the root in a snapshot, layers and all, into dir. target is
// a free path to mount it at.
func (s *Service) copyRoot(ctx context.Context, pool storage.Pool, snap string, r Record, dir, target string) error {
	defer os.Remove(target)
	return host.WithThrowawayMounts(func() error {
		if err := mountRootOf(pool, pool.Path(snap), r, target); err != nil {
			return err
		}
		_, err := s.Runner.Run(ctx, host.Cmd{
			Name: "cp", Args: []string{"-a", "--reflink=auto", target + "/.", dir},
		})
		return err
	})
}
