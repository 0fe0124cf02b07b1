<?php
// arrays.php COUNT: hash tables, sorts, serialisation, cycles for the collector.
ini_set("memory_limit", "-1");
$count = (int)$argv[1];
$items = [];
for ($i = 0; $i < $count; $i++) {
    $items["key-$i"] = ["number" => $i * 7919 % 1000003, "text" => str_repeat(md5((string)$i), 2)];
}
for ($i = 0; $i < $count; $i += 3) {
    unset($items["key-$i"]);
}
for ($i = 0; $i < $count / 10; $i++) {
    $one = new stdClass();
    $one->other = new stdClass();
    $one->other->other = $one;
    $one->text = str_repeat("garbage", 20);
}
unset($one);
gc_collect_cycles();
uasort($items, fn($a, $b) => $a["number"] <=> $b["number"]);
$copy = unserialize(serialize($items));
if ($copy !== $items) {
    exit("the copy differs\n");
}
foreach ($copy as $key => $item) {
    $i = (int)substr($key, 4);
    if ($item["number"] !== $i * 7919 % 1000003 || $item["text"] !== str_repeat(md5((string)$i), 2)) {
        exit("$key is wrong\n");
    }
}
echo count($copy), " items are right, ", md5(implode(",", array_keys($copy))), "\n";
