package systemtests

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// set is the part of the tests that this process runs. The parts exist because their tests share a cluster in different ways:
// shared tests run in parallel, exclusive and quiet tests one after another, these two on a cluster each.
var set = flag.String("set", "", "run only the shared, the exclusive or the quiet tests; empty: all that -test.run selects")

// exclusiveTests need the cluster to themselves: they kill, stop or replace one of its processes, change what all pods of a node
// depend on, or compare a figure of the whole cluster. The value is the reason.
var exclusiveTests = map[string]string{
	"TestAddressGivenToAnotherPod":                      "sets the next address that node1 assigns",
	"TestADeadPodsConnectionsAreForgotten":              "allows no packet to be late by a second",
	"TestADryRunEnds":                                   "measures how soon connections end",
	"TestAnswersInFragments":                            "needs the fragment lists of a switch, which all pods of a node share",
	"TestAPIServerDown":                                 "kills the API server",
	"TestCompletedPodHasNoRights":                       "sets the next address that node1 assigns",
	"TestCutConnectionsAreTold":                         "measures how soon connections end",
	"TestDiff":                                          "measures how soon connections end",
	"TestDrops":                                         "needs the packet-in meters of both nodes, which any denied packet uses up",
	"TestDropsSurvive":                                  "kills netmaster and fills the packet-in meters",
	"TestExtensionHeadersDoNotHideThePort":              "needs the fragment lists of a switch, which all pods of a node share",
	"TestForgedPacketsAreTold":                          "needs the packet-in meters of both nodes, which any denied packet uses up",
	"TestFragmentsAreJudgedLikeTheFirst":                "needs the fragment lists of a switch, which all pods of a node share",
	"TestGeneve":                                        "boots a second cluster",
	"TestHA":                                            "kills netmaster",
	"TestInBrief":                                       "kills netplugin and the switch",
	"TestInstalled":                                     "boots a second cluster",
	"TestJudgingTable":                                  "measures latencies",
	"TestLatencyTable":                                  "measures latencies",
	"TestLiveConnectionsAreJudgedAgain":                 "measures how soon connections end",
	"TestLiveConnectionsThroughAService":                "measures how soon connections end",
	"TestMemcachedStopped":                              "stops memcached",
	"TestNetmasterKilled":                               "kills netmaster",
	"TestNetmasterOfBeforeEpochs":                       "replaces netmaster",
	"TestNetmasterStartsWithoutAPIServer":               "kills the API server",
	"TestNetpluginKilled":                               "kills netplugin",
	"TestNetpluginStartsAlone":                          "kills netmaster and netplugin",
	"TestNetpluginStartsBeforeTheSwitch":                "kills the switch",
	"TestNewPodIsNeverOpen":                             "predicts the next address that node1 assigns",
	"TestPathMTU":                                       "narrows the links of both nodes",
	"TestPeersAreLetInWhenTheirPeersNodeHasHeardOfThem": "suspends netplugin",
	"TestPodSelectorIsEdited":                           "measures how soon connections end",
	"TestPodsStartWhileTheirPoliciesChange":             "measures how long pods take to start",
	"TestPoliciesChangeWhileNetmasterIsAway":            "kills netmaster",
	"TestPolicyDatabaseTruncated":                       "kills netmaster",
	"TestPolicyIsEditedUnderTraffic":                    "measures switch-over times at 1 kHz",
	"TestSCTPAssociationsAreJudgedAgain":                "measures how soon connections end",
	"TestSoak":                                          "compares all verdicts of the cluster with the oracle",
	"TestSwitchKilled":                                  "kills the switch",
	"TestSwitchStalls":                                  "suspends the switch",
	"TestSwitchThatTakesNoPackets":                      "kills the switch",
	"TestTakeOverByService":                             "suspends netmaster",
	"TestTerminatingPodKeepsItsRights":                  "allows no loss on ten streams that keep two processors busy",
	"TestThroughputTable":                               "measures throughput",
	"TestTwoPodsWithOneAddress":                         "has a pod claim the control plane's address",
	"TestUpgrade":                                       "replaces netmaster and netplugin",
	"TestUpgradeToAnotherTableLayout":                   "kills netplugin",
	"TestWhatWasCutIsNotResumed":                        "kills netplugin",
}

// quietTests need a cluster to themselves too, but send few packets: they run on a second cluster in parallel to the exclusive ones.
// The value is the reason.
var quietTests = map[string]string{
	"TestAccessByKubeconfig":              "stops netmaster",
	"TestBundle":                          "stops netplugin",
	"TestCentralizedTakesOver":            "runs a node state agent on both nodes",
	"TestCounters":                        "kills netmaster and netplugin",
	"TestDriftIsMendedWithinAnInterval":   "changes flows of both switches",
	"TestEnforcementReports":              "kills netmaster and netplugin",
	"TestFailingNodeStopsRollOut":         "runs a node state agent on both nodes",
	"TestHostDisturbances":                "changes node1's host configuration, and stops netplugin",
	"TestMacvtap":                         "restarts a kubelet",
	"TestModeOfAPolicy":                   "kills and stops netmaster and netplugin",
	"TestMultus":                          "changes node1's CNI configuration",
	"TestNodeConfigTable":                 "runs a node state agent on both nodes",
	"TestNodeStateCutOffRollsBack":        "runs a node state agent on both nodes",
	"TestNodeStateDeletedIsCreatedAgain":  "runs a node state agent on both nodes",
	"TestNodeStateDriftIsMended":          "runs a node state agent on both nodes",
	"TestNodeStateExample":                "runs a node state agent on both nodes",
	"TestNodeStateGuide":                  "runs a node state agent on both nodes",
	"TestNodeStateIdleWritesNothing":      "runs a node state agent on both nodes",
	"TestNodeStateIsCreatedAndEnforced":   "runs a node state agent on both nodes",
	"TestNodeStateKilledWithinAChange":    "runs a node state agent on both nodes",
	"TestNodeStateLeavesPodsLinksAlone":   "runs a node state agent on both nodes",
	"TestNodeStateOnce":                   "runs a node state agent on both nodes",
	"TestNodeStateUnmanagedWritesNothing": "runs a node state agent on both nodes",
	"TestNodeReboots":                     "ends all programs of a node",
	"TestPage":                            "kills netmaster",
	"TestPoliciesDisagree":                "runs a node state agent on both nodes",
	"TestPolicyFindsNeighbours":           "runs a node state agent on both nodes",
	"TestPolicyOneNodeAfterTheOther":      "runs a node state agent on both nodes",
	"TestPolicyReachesNodes":              "runs a node state agent on both nodes",
	"TestPolicyWait":                      "kills netmaster and netplugin",
	"TestTrace":                           "requires that the policies of the whole cluster are in force while it runs",
	"TestTraceOfNodesAndTheOutside":       "requires that the policies of the whole cluster are in force while it runs",
	"TestTraceOfLosses":                   "stops netmaster and netplugin",
	"TestVerify":                          "kills netplugin and changes flows",
	"TestVerifyOfWhoIsAway":               "suspends netplugin",
	"TestWebhook":                         "stops netmaster, and has the API server call a webhook for every policy",
}

// isShared reports whether a test runs in parallel with others on one cluster. Subtests belong to their test.
func isShared(test string) bool {
	test, _, _ = strings.Cut(test, "/")
	return exclusiveTests[test] == "" && quietTests[test] == ""
}

// selectSet sets -test.run or -test.skip to the tests of a set.
func selectSet(name string) error {
	exclusive, quiet := slices.Sorted(maps.Keys(exclusiveTests)), slices.Sorted(maps.Keys(quietTests))
	pattern := func(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }
	switch name {
	case "":
		return nil
	case "exclusive":
		return flag.Set("test.run", pattern(exclusive))
	case "quiet":
		return flag.Set("test.run", pattern(quiet))
	case "shared":
		return flag.Set("test.skip", pattern(slices.Concat(exclusive, quiet)))
	}
	return fmt.Errorf("-set %s: use shared, exclusive or quiet", name)
}

func TestIsShared(t *testing.T) {
	for test, want := range map[string]bool{
		"TestServices":         true,
		"TestGeneve/MTU":       false,
		"TestNodeStateExample": false,
		"TestHA":               false,
	} {
		t.Run(test, func(t *testing.T) {
			if got := isShared(test); got != want {
				t.Errorf("isShared(%s) = %v, want %v", test, got, want)
			}
		})
	}
}

// declaredTests returns the names of the test functions in this package's files.
func declaredTests(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, is := d.(*ast.FuncDecl); is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

func TestSetsNameTestsThatExist(t *testing.T) {
	declared := declaredTests(t)
	for _, name := range slices.Concat(slices.Collect(maps.Keys(exclusiveTests)), slices.Collect(maps.Keys(quietTests))) {
		if !slices.Contains(declared, name) {
			t.Errorf("there is no test %s", name)
		}
	}
}
