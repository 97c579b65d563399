package systemtests

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// set is the part of the tests that this process runs. The parts exist because their tests share a cluster in
// different ways: shared tests run in parallel; those of the other sets run one after another, on a cluster a set.
var set = flag.String("set", "", "run only the tests of a set: shared, exclusive, quiet, nodes or static; "+
	"empty: all that -test.run selects")

// sets holds the tests that need a cluster to themselves, or none, by set and name, with the reason. All others are
// shared.
var sets = map[string]map[string]string{
	"exclusive": exclusiveTests,
	"quiet":     quietTests,
	"nodes":     nodesTests,
	staticSet:   staticTests,
}

// staticSet is the set of tests that run without a cluster, as a part of make preflight.
const staticSet = "static"

// exclusiveTests need the cluster to themselves: they measure, or kill, stop or replace one of its processes, change
// what all pods of a node depend on, or compare a figure of the whole cluster. They run on the cluster of the shared
// tests, after them.
var exclusiveTests = map[string]string{
	"TestAddressGivenToAnotherPod":                      "sets the next address that node1 assigns",
	"TestADeadPodsConnectionsAreForgotten":              "allows no packet to be late by a second",
	"TestADryRunEnds":                                   "measures how soon connections end",
	"TestClientsOfAnAbsentPodSeeErrors":                 "measures how soon clients see errors, and counts a node's answers",
	"TestCompletedPodHasNoRights":                       "sets the next address that node1 assigns",
	"TestCutConnectionsAreTold":                         "measures how soon connections end",
	"TestDiff":                                          "measures how soon connections end",
	"TestDrops":                                         "needs the packet-in meters of both nodes, which any denied packet uses up",
	"TestDropsSurvive":                                  "kills netmaster and fills the packet-in meters",
	"TestForgedPacketsAreTold":                          "needs the packet-in meters of both nodes, which any denied packet uses up",
	"TestGeneve":                                        "boots a second cluster",
	"TestInBrief":                                       "kills netplugin and the switch",
	"TestInstalled":                                     "boots a second cluster",
	"TestJudgingTable":                                  "measures latencies",
	"TestLatencyTable":                                  "measures latencies",
	"TestLiveConnectionsAreJudgedAgain":                 "measures how soon connections end",
	"TestLiveConnectionsThroughAService":                "measures how soon connections end",
	"TestMemcachedStopped":                              "stops memcached",
	"TestNetmasterKilled":                               "kills netmaster",
	"TestNetpluginKilled":                               "kills netplugin",
	"TestNetpluginStartsBeforeTheSwitch":                "kills the switch",
	"TestNewPodIsNeverOpen":                             "predicts the next address that node1 assigns",
	"TestPeersAreLetInWhenTheirPeersNodeHasHeardOfThem": "suspends netplugin",
	"TestPodSelectorIsEdited":                           "measures how soon connections end",
	"TestPodsStartWhileTheirPoliciesChange":             "measures how long pods take to start",
	"TestPoliciesChangeWhileNetmasterIsAway":            "kills netmaster",
	"TestProxyModeIPVS":                                 "needs kube-proxy in another mode",
	"TestPolicyDatabaseTruncated":                       "kills netmaster",
	"TestPolicyIsEditedUnderTraffic":                    "measures switch-over times at 1 kHz",
	"TestSCTPAssociationsAreJudgedAgain":                "measures how soon connections end",
	"TestServicesInOpenVSwitch":                         "restarts netplugin with another flag, kube-proxy and the switch",
	"TestServicesTable":                                 "measures throughput",
	"TestShape":                                         "changes a node's routes",
	"TestSoak":                                          "compares all verdicts of the cluster with the oracle",
	"TestStartWithConfirmStep":                          "measures how long pods take to start",
	"TestSwitchKilled":                                  "kills the switch",
	"TestSwitchStalls":                                  "suspends the switch",
	"TestSwitchThatTakesNoPackets":                      "kills the switch",
	"TestTerminatingPodKeepsItsRights":                  "allows no loss on ten streams that keep two processors busy",
	"TestThroughputTable":                               "measures throughput",
	"TestTwoPodsWithOneAddress":                         "has a pod claim the control plane's address",
	"TestUpgradeToAnotherTableLayout":                   "kills netplugin",
	"TestWhatWasCutIsNotResumed":                        "kills netplugin",
}

// quietTests need a cluster to themselves too, and their bounds allow for a busy machine: they run on a cluster of
// their own while the exclusive ones run.
var quietTests = map[string]string{
	"TestAccessByKubeconfig":              "stops netmaster",
	"TestAPIServerDown":                   "kills the API server",
	"TestBandwidth":                       "measures rates, and kills netplugin",
	"TestCounters":                        "kills netmaster and netplugin",
	"TestHA":                              "kills netmaster",
	"TestHostDisturbances":                "changes node1's host configuration, and stops netplugin",
	"TestNetmasterOfBeforeEpochs":         "replaces netmaster",
	"TestNetmasterStartsWithoutAPIServer": "kills the API server",
	"TestNetpluginStartsAlone":            "kills netmaster and netplugin",
	"TestOtherDisturbances":               "changes node1's host configuration, and stops netplugin",
	"TestPathMTU":                         "narrows the links of both nodes, which netplugin passes on to all pods",
	"TestTakeOverByService":               "suspends netmaster",
	"TestUpgrade":                         "replaces netmaster and netplugin",
	"TestWebhook":                         "stops netmaster, and has the API server call a webhook for every policy",
}

// nodesTests lists tests that need a cluster of their own too, but measure nothing: most are about the configuration of
// nodes, and wait. Their cluster runs in parallel with lint and unit tests. docs/testing.md has the duration of each
// set.
var nodesTests = map[string]string{
	"TestBundle":                          "stops netplugin",
	"TestCentralizedTakesOver":            "runs node state agents",
	"TestChainedPlugin":                   "changes node1's CNI configuration, and kills netplugin",
	"TestDriftIsMendedWithinAnInterval":   "changes flows of both switches",
	"TestEnforcementReports":              "kills netmaster and netplugin",
	"TestExplain":                         "changes flows, and restarts netplugin",
	"TestFailingNodeStopsRollOut":         "runs node state agents",
	"TestMacvtap":                         "restarts a kubelet",
	"TestModeOfAPolicy":                   "kills and stops netmaster and netplugin",
	"TestMultus":                          "changes node1's CNI configuration",
	"TestNodeConfigTable":                 "runs node state agents",
	"TestNodeIsDrained_WithoutNetplugin":  "stops netplugin, and drains a node",
	"TestNodeReboots":                     "ends all programs of a node",
	"TestNodeReboots_MacvtapPods":         "ends all programs of a node",
	"TestNodeStateCutOffRollsBack":        "runs node state agents",
	"TestNodeStateDeletedIsCreatedAgain":  "runs node state agents",
	"TestNodeStateDriftIsMended":          "runs node state agents",
	"TestNodeStateExample":                "runs node state agents",
	"TestNodeStateGuide":                  "runs node state agents",
	"TestNodeStateIdleWritesNothing":      "runs node state agents",
	"TestNodeStateIsCreatedAndEnforced":   "runs node state agents",
	"TestNodeStateKilledWithinAChange":    "runs node state agents",
	"TestNodeStateLargest":                "keeps the API server busy for seconds, which ends a request after 34 s",
	"TestNodeStateLeavesPodsLinksAlone":   "runs node state agents",
	"TestNodeStateOnce":                   "runs node state agents",
	"TestNodeStateUnmanagedWritesNothing": "runs node state agents",
	"TestPage":                            "kills netmaster",
	"TestPodOfAnotherPlugin":              "changes node1's CNI configuration",
	"TestPoliciesDisagree":                "runs node state agents",
	"TestPolicyFindsNeighbours":           "runs node state agents",
	"TestPolicyOneNodeAfterTheOther":      "runs node state agents",
	"TestPolicyReachesNodes":              "runs node state agents",
	"TestPolicySelectsNodes":              "runs node state agents",
	"TestPolicyWait":                      "kills netmaster and netplugin",
	"TestTrace":                           "requires that the policies of the whole cluster are in force while it runs",
	"TestTraceOfLosses":                   "stops netmaster and netplugin",
	"TestTraceOfNodesAndTheOutside":       "requires that the policies of the whole cluster are in force while it runs",
	"TestVerify":                          "kills netplugin and changes flows",
	"TestVerifyIndependently":             "changes flows",
	"TestVerifyIndependently_CodecFault":  "has a node's flows written with another port",
	"TestVerifyOfWhoIsAway":               "suspends netplugin",
}

// staticTests need no cluster.
var staticTests = map[string]string{
	"TestClusterScopedObjects_AreFound":      "evaluates source text",
	"TestClusterScopedObjects_Collide":       "compares lists",
	"TestClusterScopedObjects_OfSharedTests": "reads the source files of the tests",
	"TestIsShared":                           "reads the sets",
	"TestSetsAreDisjoint":                    "reads the sets",
	"TestSetsNameTestsThatExist":             "reads the source files of the tests",
}

// isShared reports whether a test runs in parallel with others on one cluster. Subtests belong to their test.
func isShared(test string) bool {
	test, _, _ = strings.Cut(test, "/")
	for _, tests := range sets {
		if tests[test] != "" {
			return false
		}
	}
	return true
}

// sharedChange returns an error if a test is shared, and so may not change what the packets of other tests meet.
func sharedChange(test, change string) error {
	if !isShared(test) {
		return nil
	}
	return fmt.Errorf("%s %s while other tests send packets; add it to a set in sets_test.go", test, change)
}

// selectSet sets -test.run or -test.skip to the tests of a set.
func selectSet(name string) error {
	pattern := func(tests []string) string { return "^(" + strings.Join(tests, "|") + ")$" }
	switch tests := sets[name]; {
	case name == "":
		return nil
	case name == "shared":
		return flag.Set("test.skip", pattern(unshared()))
	case tests != nil:
		return flag.Set("test.run", pattern(slices.Sorted(maps.Keys(tests))))
	}
	return fmt.Errorf("-set %s: use shared, %s", name, strings.Join(slices.Sorted(maps.Keys(sets)), ", "))
}

// unshared returns the tests of all sets but the shared one, sorted.
func unshared() (names []string) {
	for _, tests := range sets {
		names = slices.AppendSeq(names, maps.Keys(tests))
	}
	slices.Sort(names)
	return names
}

func TestIsShared(t *testing.T) {
	for test, want := range map[string]bool{
		"TestServices":                   true,
		"TestGeneve/MTU":                 false,
		"TestNodeStateExample":           false,
		"TestHA":                         false,
		"TestPolicyIsEditedUnderTraffic": false,
	} {
		t.Run(test, func(t *testing.T) {
			if got := isShared(test); got != want {
				t.Errorf("isShared(%s) = %v, want %v", test, got, want)
			}
		})
	}
}

// TestSharedChange_IsRefused: at commit baf8375 TestExplain was shared, and opened node1 by a flow that it added.
func TestSharedChange_IsRefused(t *testing.T) {
	for test, refused := range map[string]bool{
		"TestFragmentsAreJudgedLikeTheFirst": true,
		"TestServices/of_several_pods":       true,
		"TestExplain":                        false,
		"TestPathMTU":                        false,
	} {
		t.Run(test, func(t *testing.T) {
			if err := sharedChange(test, "changes flows"); (err != nil) != refused {
				t.Errorf("sharedChange(%s) = %v, want an error: %v", test, err, refused)
			}
		})
	}
}

// declaredTests returns the names of the test functions in this package's files.
func declaredTests(t *testing.T) (names []string) {
	t.Helper()
	for name := range declarationsOf(parseFiles(t, "*_test.go")).functions {
		if strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	return names
}

func TestSetsNameTestsThatExist(t *testing.T) {
	declared := declaredTests(t)
	for _, name := range unshared() {
		if !slices.Contains(declared, name) {
			t.Errorf("there is no test %s", name)
		}
	}
}

// TestSetsAreDisjoint: a test of two sets would run twice, and a set without a reason for a test would leave it shared
// too.
func TestSetsAreDisjoint(t *testing.T) {
	names := unshared()
	for n, name := range names {
		if n > 0 && names[n-1] == name {
			t.Errorf("%s is in two sets", name)
		}
		if isShared(name) {
			t.Errorf("%s has no reason, and would be shared too", name)
		}
	}
}
