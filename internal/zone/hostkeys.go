package zone

import (
	"context"
	"io"
	"strings"

	"zone/internal/host"
	"zone/internal/runtime"
)

// makeHostKeys gives a zone with an ssh server host keys of its own when it has
// none, as after creation: no two zones may share them, and no server starts
// without. It runs in a container whose first process has not started yet.
func (s *Service) makeHostKeys(ctx context.Context, name string, pid int) {
	root, err := host.OpenRoot(procRoot(pid))
	if err != nil {
		return
	}
	defer root.Close()
	if !root.Exists("/etc/ssh/sshd_config") || !root.Exists("/usr/bin/ssh-keygen") || hasHostKey(root) {
		return
	}
	argv := s.Engine.ExecArgv(name, runtime.ExecOptions{Args: []string{"/usr/bin/ssh-keygen", "-A"}})
	if _, err := s.Runner.Run(ctx, host.Cmd{Name: argv[0], Args: argv[1:], Stdout: io.Discard}); err != nil {
		s.Note("zone %s: no ssh host keys could be made: %v", name, err)
	}
}

func hasHostKey(root *host.Root) bool {
	entries, err := root.ReadDir("/etc/ssh")
	if err != nil {
		return true // unknown: leave it alone
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "ssh_host_") && strings.HasSuffix(e.Name(), "_key") {
			return true
		}
	}
	return false
}
