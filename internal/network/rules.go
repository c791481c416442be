package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"zone/internal/errdefs"
	"zone/internal/host"
)

func tableName(bridge string) string { return "zone_" + bridge }

// Rules renders the nftables rules of a bridge as one transaction that replaces
// whatever was in the table: zones of the bridge reach each other and, behind
// the host's address, everything the host reaches; from outside only answers
// come in; a packet with a source address outside of the subnet is not routed.
//
// Another table that drops forwarded packets still drops them: no table of
// nftables can overrule a drop of another.
func Rules(bridge string, subnet netip.Prefix) string {
	return fmt.Sprintf(`table inet %[1]s
delete table inet %[1]s
table inet %[1]s {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr %[3]s oifname != "%[2]s" masquerade
	}
	chain forward {
		type filter hook forward priority filter; policy accept;
		iifname "%[2]s" oifname "%[2]s" accept
		iifname "%[2]s" ip saddr %[3]s accept
		iifname "%[2]s" drop
		oifname "%[2]s" ct state established,related accept
		oifname "%[2]s" drop
	}
}
`, tableName(bridge), bridge, subnet)
}

// ensureRules loads the rules unless their table is there. Asking the kernel
// takes some 20 µs where starting nft takes milliseconds, so each Attach asks
// and so mends what a flush of the ruleset has taken away.
func (n *Network) ensureRules(ctx context.Context) error {
	if there, err := tableExists(tableName(n.Name)); err == nil && there {
		return nil
	}
	if err := n.nft(ctx, Rules(n.Name, n.Subnet)); err != nil {
		return err
	}
	there, err := tableExists(tableName(n.Name))
	if err == nil && !there {
		err = errors.New("nft took the rules but the table is not there")
	}
	return err
}

func (n *Network) removeRules(ctx context.Context) error {
	there, err := tableExists(tableName(n.Name))
	if err != nil || !there {
		return err
	}
	return n.nft(ctx, fmt.Sprintf("delete table inet %s\n", tableName(n.Name)))
}

func (n *Network) nft(ctx context.Context, script string) error {
	_, err := n.Runner.Run(ctx, host.Cmd{
		Name: "nft", Args: []string{"-f", "-"}, Stdin: strings.NewReader(script), Timeout: lockWait - 5*time.Second,
	})
	if host.IsMissing(err) {
		return errdefs.New(errdefs.NotSupported, "load firewall rules", "the program nft is not there").
			WithHint("apt-get install nftables")
	}
	if err != nil {
		return fmt.Errorf("load firewall rules: %w", err)
	}
	return nil
}

// Of linux/netfilter/nf_tables.h.
const (
	nftMsgGetTable = 1
	nftaTableName  = 1
)

// tableExists asks the kernel for a table of the inet family.
func tableExists(name string) (bool, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|nftMsgGetTable, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nftaTableName, nl.ZeroTerminated(name)))
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up nftables table %s: %w", name, err)
	}
	return len(answers) > 0, nil
}
