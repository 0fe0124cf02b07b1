(* trees.ml COUNT: balanced trees, hash tables and big arrays of bytes that outlive collections. *)
module Tree = Map.Make (Int)

let count = int_of_string Sys.argv.(1)
let text_of i = String.make (20 + (i mod 60)) (Char.chr (65 + (i mod 26)))

let () =
  let table = Hashtbl.create 16 in
  let tree = ref Tree.empty in
  for i = 0 to count - 1 do
    let key = i * 7919 mod 1000003 in
    tree := Tree.add key (text_of i) !tree;
    Hashtbl.replace table (string_of_int i) key
  done;
  for i = 0 to count - 1 do
    if i mod 3 = 0 then tree := Tree.remove (i * 7919 mod 1000003) !tree
  done;
  Gc.compact ();
  for i = 0 to count - 1 do
    let key = Hashtbl.find table (string_of_int i) in
    assert (key = i * 7919 mod 1000003);
    assert (Tree.find_opt key !tree = if i mod 3 = 0 then None else Some (text_of i))
  done;
  let length = Tree.fold (fun _ text sum -> sum + String.length text) !tree 0 in
  Printf.printf "%d keys, %d letters\n" (Tree.cardinal !tree) length
